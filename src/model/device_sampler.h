// Draws tokens on the device that holds the logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/layers/activations.h"
#include "model/rank_device.h"

namespace switchyard {

// Owns the buffers, which grow with the number of rows.
class DeviceSampler {
 public:
  // logits [draws.size(), vocab] on the device → one token per row, −1 if a logit is not finite.
  std::vector<int32_t> Draw(RankDevice& rank, const float* logits,
                            std::span<const kernels::RowSampling> draws, int64_t vocab) {
    kernels::Device& device = rank.device();
    const auto rows = static_cast<int64_t>(draws.size());
    if (rows == 0) return {};
    if (rows > rows_) {
      draws_ = device.Allocate(draws.size_bytes());
      tokens_ = device.Allocate(rows * sizeof(int32_t));
      rows_ = rows;
    }
    weights_.Reserve(device, rows * vocab);
    device.CopyIn(draws_.get(), draws.data(), draws.size_bytes());
    rank.Draw({.logits = logits,
               .draws = static_cast<const kernels::RowSampling*>(draws_.get()),
               .rows = rows,
               .vocab = vocab,
               .weights = weights_.data(),
               .tokens = static_cast<int32_t*>(tokens_.get())});
    std::vector<int32_t> tokens(rows);
    device.CopyOut(tokens.data(), tokens_.get(), rows * sizeof(int32_t));
    return tokens;
  }

 private:
  int64_t rows_ = 0;
  std::shared_ptr<void> draws_, tokens_;
  Activations weights_;  // [rows, vocab]
};

}  // namespace switchyard
