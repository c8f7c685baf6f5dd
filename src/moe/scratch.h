// Workspace that a rank keeps between batches.
#pragma once

#include <cstddef>
#include <memory>

namespace switchyard {

// Uninitialized array. It grows to the largest requested size, so in the steady state it allocates
// nothing. Growing discards the contents. Used by the rank's thread only.
template <typename T>
class Scratch {
 public:
  T* Get(size_t count) {
    if (count > capacity_) {
      data_.reset(new T[count]);
      capacity_ = count;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
  size_t capacity_ = 0;
};

}  // namespace switchyard
