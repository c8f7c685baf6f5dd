// Arena allocator for thousands of matrices in few allocations. With one allocation per matrix, the
// kernel's limit on mappings would be exceeded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/tensor.h"

namespace switchyard {

// Used by one thread. Pieces outlive the object.
class Slabs {
 public:
  static constexpr size_t kSlabBytes = size_t{64} << 20;

  // Larger pieces get a slab of their own.
  explicit Slabs(size_t slab_bytes = kSlabBytes) : slab_bytes_(slab_bytes) {}

  struct Piece {
    uint8_t* data = nullptr;  // zeroed, aligned to 64 bytes
    std::shared_ptr<const void> owner;
  };
  // Error kResource if out of memory.
  Piece Allocate(size_t bytes);

  static size_t Align(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  const size_t slab_bytes_;
  std::shared_ptr<const Tensor> slab_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace switchyard
