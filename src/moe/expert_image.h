// An expert's weights as one run of bytes, so that another rank can have them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moe/layer.h"

namespace switchyard {

// What an expert reads of its rank's memory, in the order in which it travels: a head that says
// what the views are, and the arrays behind them, each at a multiple of kAlignment from the start.
// Keeps the expert's owners; copies nothing.
class ExpertImage {
 public:
  static constexpr size_t kAlignment = 64;

  explicit ExpertImage(OwnedExpert expert);
  size_t bytes() const { return bytes_; }
  // Writes bytes [begin, begin + out.size()) of the run.
  void Copy(size_t begin, std::span<std::byte> out) const;

 private:
  struct Part {
    size_t begin = 0;
    std::span<const std::byte> bytes;
  };

  OwnedExpert expert_;
  std::vector<std::byte> head_;
  std::vector<Part> parts_;  // ascending by `begin`; what is between them is zero
  size_t bytes_ = 0;
};

// The expert of a whole run of `size` bytes at `run`, which it owns from now on; no number is
// changed. CHECKs that the run is an ExpertImage's: ranks trust one another.
OwnedExpert ExpertFromImage(std::shared_ptr<const std::byte> run, size_t size);

}  // namespace switchyard
