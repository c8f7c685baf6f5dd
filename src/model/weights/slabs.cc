#include "model/weights/slabs.h"

#include <algorithm>

namespace switchyard {

Slabs::Piece Slabs::Allocate(size_t bytes) {
  bytes = Align(bytes);
  if (bytes > left_ || !slab_) {
    const size_t size = std::max(bytes, slab_bytes_);
    auto slab = std::make_shared<Tensor>(Tensor::Empty(DType::kU8, {static_cast<int64_t>(size)}));
    next_ = static_cast<uint8_t*>(slab->mutable_raw());
    left_ = size;
    slab_ = std::move(slab);
  }
  Piece piece{next_, slab_};
  next_ += bytes;
  left_ -= bytes;
  return piece;
}

}  // namespace switchyard
