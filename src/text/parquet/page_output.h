// Output of the decoders of Parquet's codecs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "text/parquet/cursor.h"

namespace switchyard::parquet {

// A page of a fixed size, filled from the front. Errors are those of `input`, which must outlive
// it.
class PageOutput {
 public:
  PageOutput(uint64_t bytes, const Cursor* input) : bytes_(bytes), input_(input) {}

  void Append(std::span<const uint8_t> from) {
    Reserve(from.size());
    std::copy(from.begin(), from.end(), bytes_.begin() + static_cast<ptrdiff_t>(at_));
    at_ += from.size();
  }
  // Appends bytes that begin `distance` before the end; the ranges may overlap.
  void Repeat(uint64_t distance, uint64_t count) {
    if (distance == 0 || distance > at_) input_->Fail("a copy begins before the data");
    Reserve(count);
    for (uint64_t i = 0; i < count; ++i, ++at_) bytes_[at_] = bytes_[at_ - distance];
  }
  void Append(uint8_t byte) {
    Reserve(1);
    bytes_[at_++] = byte;
  }
  uint64_t size() const { return at_; }
  std::span<const uint8_t> From(uint64_t begin) const {
    return std::span(bytes_).subspan(begin, at_ - begin);
  }
  std::vector<uint8_t> Finish() {
    if (at_ != bytes_.size()) input_->Fail("the page decompresses to fewer bytes than it should");
    return std::move(bytes_);
  }

 private:
  void Reserve(uint64_t count) const {
    if (count > bytes_.size() - at_)
      input_->Fail("the page decompresses to more bytes than it should");
  }

  std::vector<uint8_t> bytes_;
  uint64_t at_ = 0;
  const Cursor* input_;
};

}  // namespace switchyard::parquet
