// Memory and cache bandwidth: reads and writes by all threads of a pool concurrently.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"

namespace switchyard::bench {

// Reads one word of every line, with software prefetch `ahead` bytes before the read; 0: no
// prefetch.
void ReadLines(const void* begin, int64_t bytes, int64_t ahead);

// Bytes per second of one read of `bytes` from `begin`, divided among the pool's threads. Alternate
// it with the measured work, because memory bandwidth varies with other load on the machine.
double ReadOnce(ThreadPool& pool, const void* begin, int64_t bytes);

// One buffer for each thread of the pool. Each thread is the first to touch its buffer, so that the
// buffer is on the thread's NUMA node. Borrows the pool.
class MemoryLoops {
 public:
  // Error kResource if the memory cannot be allocated. `bytes`: a multiple of 4096, per thread.
  MemoryLoops(ThreadPool& pool, int64_t bytes);

  // Each of the following functions returns the bytes per second of all threads together, the best
  // of several runs.
  //
  // Reads every line of the buffers, with software prefetch `ahead` bytes before the read; 0: no
  // prefetch.
  double Read(int64_t ahead);
  // Reads the first `bytes` of each buffer repeatedly, in whole vectors.
  double ReadAgain(int64_t bytes);
  // Copies one half of each buffer to the other by memcpy; counts bytes read and written.
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
