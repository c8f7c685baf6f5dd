// Samples tokens on the device that holds the logits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "core/check.h"
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

  // Tokens are elements of `ids` [vocab], not indices of logits.
  void SetIds(kernels::Device& device, std::span<const int32_t> ids) {
    ids_.CopyIn(device, std::as_bytes(ids));
    has_ids_ = true;
  }

  // Begins a batch with one row of logits for each of `sampling`. `masks`: null if there are none.
  void Begin(RankDevice& rank, std::span<const kernels::RowSampling> sampling, int64_t vocab,
             const TokenMasks* masks = nullptr) {
    kernels::Device& device = rank.device();
    const auto rows = static_cast<int64_t>(sampling.size());
    vocab_ = vocab;
    rows_ = rows;
    if (rows > capacity_) {
      sampling_ = device.Allocate(sampling.size_bytes());
      tokens_ = device.Allocate(rows * sizeof(int32_t));
      capacity_ = rows;
    }
    weights_.Reserve(device, rows * vocab);
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
  }

  // Starts the copy of the batch's tokens to the host. If Begin was never called, there are no
  // tokens, and Receive waits only for the work enqueued so far.
  void Send(kernels::Device& device) {
    CHECK_LT(pending_, kMaxPending);
    std::unique_ptr<kernels::HostCopy>& copy = copies_[(oldest_ + pending_) % kMaxPending];
    if (!copy) copy = device.MakeHostCopy();
    copy->Start(tokens_.get(), rows_ * sizeof(int32_t));
    ++pending_;
  }
  // Waits for the tokens of the oldest batch that is pending. They are valid until kMaxPending more
  // are sent.
  std::span<const int32_t> Receive() {
    CHECK_GT(pending_, 0u);
    const std::span<const int32_t> tokens = Wait(oldest_);
    oldest_ = (oldest_ + 1) % kMaxPending;
    --pending_;
    return tokens;
  }
  // Waits for the tokens of the batch that was sent last. Older ones stay pending.
  std::span<const int32_t> ReceiveLast() {
    CHECK_GT(pending_, 0u);
    --pending_;
    return Wait((oldest_ + pending_) % kMaxPending);
  }

  // [rows] of the last sampled batch, in device memory.
  const int32_t* tokens() const { return static_cast<const int32_t*>(tokens_.get()); }

 private:
  // Device memory that grows with its contents.
  class Buffer {
   public:
    void CopyIn(kernels::Device& device, std::span<const std::byte> bytes) {
      if (bytes.size() > capacity_) {
        capacity_ = std::max(bytes.size(), 2 * capacity_);
        memory_ = device.Allocate(capacity_);
      }
      device.CopyIn(memory_.get(), bytes.data(), bytes.size());
    }
    template <typename T>
    const T* data() const {
      return static_cast<const T*>(memory_.get());
    }

   private:
    std::shared_ptr<void> memory_;
    size_t capacity_ = 0;
  };

  std::span<const int32_t> Wait(size_t copy) {
    const std::span<const std::byte> bytes = copies_[copy]->Wait();
    return {reinterpret_cast<const int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t)};
  }

  int64_t capacity_ = 0, rows_ = 0, vocab_ = 0;
  std::shared_ptr<void> sampling_, tokens_;
  Activations weights_;       // [rows, vocab]
  bool has_masks_ = false;    // whether the current batch has masks
  Buffer mask_rows_, masks_;  // the members of TokenMasks on the device
  bool has_ids_ = false;
  Buffer ids_;  // [vocab] of SetIds
  std::array<std::unique_ptr<kernels::HostCopy>, kMaxPending> copies_;
  size_t oldest_ = 0, pending_ = 0;
};

}  // namespace switchyard
