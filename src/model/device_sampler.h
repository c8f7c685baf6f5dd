// Samples tokens, and selects the most probable ones, on the device that holds the logits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "core/check.h"
#include "kernels/best_tokens.h"
#include "model/forward_batch.h"
#include "model/layers/activations.h"
#include "model/rank_device.h"

namespace switchyard {

// Owns the buffers, which grow with the number of rows. The tokens of a batch stay on the device
// until the tokens of the next batch are sampled, so the next batch can read them
// (ForwardBatch::token_rows). Copies to the host of up to kMaxPending batches may be in flight.
class DeviceSampler {
 public:
  static constexpr size_t kMaxPending = 2;
  struct Result {
    std::span<const int32_t> tokens;  // [rows] the sampled tokens
    kernels::BestTokenRows best;      // empty: the batch has none
    uint64_t pass = 0;                // the number given to Send
  };

  // Tokens are elements of `ids` [vocab], not indices of logits.
  void SetIds(kernels::Device& device, std::span<const int32_t> ids) {
    ids_.CopyIn(device, std::as_bytes(ids));
    has_ids_ = true;
  }

  // Begins a batch with one row of logits for each of `sampling`. `masks`: null if there are none.
  // `best_tokens`: of each row, selected without the mask; 0: none.
  void Begin(RankDevice& rank, std::span<const kernels::RowSampling> sampling, int64_t vocab,
             const TokenMasks* masks = nullptr, int32_t best_tokens = 0) {
    kernels::Device& device = rank.device();
    const auto rows = static_cast<int64_t>(sampling.size());
    vocab_ = vocab;
    rows_ = rows;
    if (rows > capacity_) {
      if (sampling_) device.Synchronize();
      sampling_ = device.Allocate(sampling.size_bytes());
      tokens_ = device.Allocate(rows * sizeof(int32_t));
      capacity_ = rows;
    }
    weights_.Reserve(device, rows * vocab);
    best_tokens_ = best_tokens;
    best_.Reserve(device, BestBytes());
    if (rows > 0) device.CopyIn(sampling_.get(), sampling.data(), sampling.size_bytes());
    has_masks_ = masks && !masks->words.empty();
    if (!has_masks_) return;
    CHECK_EQ(std::ssize(masks->rows), rows);
    mask_rows_.CopyIn(device, std::as_bytes(std::span(masks->rows)));
    masks_.CopyIn(device, std::as_bytes(std::span(masks->words)));
  }

  // Samples the tokens of rows [first, first + rows) from logits [rows, vocab] on the device; −1
  // where a logit is not finite.
  void Sample(RankDevice& rank, const float* logits, int64_t first, int64_t rows) {
    if (rows == 0) return;
    rank.Sample({.logits = logits,
                 .sampling = static_cast<const kernels::RowSampling*>(sampling_.get()) + first,
                 .rows = rows,
                 .vocab = vocab_,
                 .masks = has_masks_ ? masks_.data<uint32_t>() : nullptr,
                 .mask_rows = has_masks_ ? mask_rows_.data<int32_t>() + first : nullptr,
                 .weights = weights_.data(),
                 .ids = has_ids_ ? ids_.data<int32_t>() : nullptr,
                 .tokens = static_cast<int32_t*>(tokens_.get()) + first});
    if (best_tokens_ == 0) return;
    auto* const exp_sums = best_.data<double>();
    auto* const best = reinterpret_cast<kernels::BestToken*>(exp_sums + rows_);
    rank.SelectBestTokens({.logits = logits,
                           .rows = rows,
                           .vocab = vocab_,
                           .count = best_tokens_,
                           .ids = has_ids_ ? ids_.data<int32_t>() : nullptr,
                           .exp_sums = exp_sums + first,
                           .best = best + first * best_tokens_});
  }

  // Starts the copy of the batch's results to the host. If Begin was never called, there are no
  // tokens, and Receive waits only for the work enqueued so far. `pass`: number of the batch's
  // pass.
  void Send(kernels::Device& device, uint64_t pass) {
    CHECK_LT(pending_, kMaxPending);
    Copy& copy = copies_[(oldest_ + pending_) % kMaxPending];
    if (!copy.tokens) copy.tokens = device.MakeHostCopy();
    copy.tokens->Start(tokens_.get(), rows_ * sizeof(int32_t));
    copy.pass = pass;
    copy.rows = rows_;
    copy.best_tokens = best_tokens_;
    if (best_tokens_ > 0) {
      if (!copy.best) copy.best = device.MakeHostCopy();
      copy.best->Start(best_.data<std::byte>(), BestBytes());
    }
    ++pending_;
  }
  // Waits for the results of the oldest batch that is pending. They are valid until kMaxPending
  // more are sent.
  Result Receive() {
    CHECK_GT(pending_, 0u);
    const Result result = copies_[oldest_].Wait();
    oldest_ = (oldest_ + 1) % kMaxPending;
    --pending_;
    return result;
  }
  // Waits for the results of the batch that was sent last. Older ones stay pending.
  Result ReceiveLast() {
    CHECK_GT(pending_, 0u);
    --pending_;
    return copies_[(oldest_ + pending_) % kMaxPending].Wait();
  }

  // [rows] of the last sampled batch, in device memory.
  const int32_t* tokens() const { return static_cast<const int32_t*>(tokens_.get()); }

 private:
  // Device memory that grows with its contents.
  class Buffer {
   public:
    // The contents are lost if it reallocates.
    void Reserve(kernels::Device& device, size_t bytes) {
      if (bytes <= capacity_) return;
      capacity_ = std::max(bytes, 2 * capacity_);
      if (memory_) device.Synchronize();  // freeing waits for the GPU, without a deadline
      memory_ = device.Allocate(capacity_);
    }
    void CopyIn(kernels::Device& device, std::span<const std::byte> bytes) {
      Reserve(device, bytes.size());
      device.CopyIn(memory_.get(), bytes.data(), bytes.size());
    }
    template <typename T>
    T* data() const {
      return static_cast<T*>(memory_.get());
    }

   private:
    std::shared_ptr<void> memory_;
    size_t capacity_ = 0;
  };

  // A copy of a batch's results to the host.
  struct Copy {
    std::unique_ptr<kernels::HostCopy> tokens, best;
    uint64_t pass = 0;
    int64_t rows = 0;
    int32_t best_tokens = 0;

    Result Wait() {
      const std::span<const std::byte> bytes = tokens->Wait();
      Result result = {.pass = pass};
      result.tokens = {reinterpret_cast<const int32_t*>(bytes.data()),
                       bytes.size() / sizeof(int32_t)};
      if (best_tokens == 0) return result;
      const std::byte* const found = best->Wait().data();
      const auto* const exp_sums = reinterpret_cast<const double*>(found);
      result.best = {.exp_sums = {exp_sums, static_cast<size_t>(rows)},
                     .best = {reinterpret_cast<const kernels::BestToken*>(exp_sums + rows),
                              static_cast<size_t>(rows * best_tokens)},
                     .count = best_tokens};
      return result;
    }
  };

  // Bytes of the best tokens of a batch: BestTokensParams::exp_sums, then BestTokensParams::best.
  size_t BestBytes() const {
    if (best_tokens_ == 0) return 0;
    return rows_ * (sizeof(double) + best_tokens_ * sizeof(kernels::BestToken));
  }

  int64_t capacity_ = 0, rows_ = 0, vocab_ = 0;
  std::shared_ptr<void> sampling_, tokens_;
  Activations weights_;       // [rows, vocab]
  bool has_masks_ = false;    // whether the current batch has masks
  Buffer mask_rows_, masks_;  // the members of TokenMasks on the device
  bool has_ids_ = false;
  Buffer ids_;               // [vocab] of SetIds
  int32_t best_tokens_ = 0;  // of each row of the current batch
  Buffer best_;              // BestBytes()
  std::array<Copy, kMaxPending> copies_;
  size_t oldest_ = 0, pending_ = 0;
};

}  // namespace switchyard
