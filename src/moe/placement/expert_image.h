// Serialization of an expert's weights to one byte array, for transfer to another rank.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moe/layer_config.h"

namespace switchyard {

// The serialized form of an expert: a header that describes the weight views, then their arrays,
// each aligned to kAlignment from the start. Holds references to the expert's owners. Only Copy
// copies weights.
class ExpertImage {
 public:
  static constexpr size_t kAlignment = 64;

  explicit ExpertImage(OwnedExpert expert);
  size_t bytes() const { return bytes_; }
  // Writes bytes [begin, begin + out.size()) of the serialized form.
  void Copy(size_t begin, std::span<std::byte> out) const;

 private:
  struct Part {
    size_t begin = 0;
    std::span<const std::byte> bytes;
  };

  OwnedExpert expert_;
  std::vector<std::byte> head_;
  std::vector<Part> parts_;  // ascending by `begin`; padding between them is zero
  size_t bytes_ = 0;
};

// Deserializes an expert from `size` bytes at `run`. The expert refers to these bytes and keeps
// `run` alive. Weights are bit-identical. CHECKs that the bytes are an ExpertImage, because ranks
// trust one another.
OwnedExpert ExpertFromImage(std::shared_ptr<const std::byte> run, size_t size);

}  // namespace switchyard
