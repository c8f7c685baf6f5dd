// Reads and writes of memory by all threads of a pool at once: what memory and caches give.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"

namespace switchyard::bench {

// Reads a word of every line, asking for lines `ahead` bytes before they are read; 0: not.
void ReadLines(const void* begin, int64_t bytes, int64_t ahead);

// Bytes per second that the pool's threads read of `bytes` from `begin` on, each a part of its own:
// in turns with what reads them for a purpose, since memory is fast or slow by what others do.
double ReadOnce(ThreadPool& pool, const void* begin, int64_t bytes);

// One buffer for each thread of the pool, touched by it. Borrows the pool.
class MemoryLoops {
 public:
  // Error kResource where there is not so much memory. `bytes`: a multiple of 4096.
  MemoryLoops(ThreadPool& pool, int64_t bytes);

  // Each returns bytes per second of all threads together, the best of several times.
  // Of every line of the buffers, asking for lines `ahead` bytes before they are read; 0: not.
  double Read(int64_t ahead);
  // Reads whole vectors of the first `bytes` of each buffer over and over.
  double ReadAgain(int64_t bytes);
  // From one half of each buffer to the other by memcpy; what is read and what is written count.
  double Copy();
  double Fill();  // by memset

 private:
  template <typename Body>
  double Best(double bytes, const Body& body);

  ThreadPool& pool_;
  int64_t bytes_;
  std::vector<Tensor> buffers_;
};

}  // namespace switchyard::bench
