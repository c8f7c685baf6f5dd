// The decoder as one rank sees it: token rows in, logits out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "model/config.h"
#include "model/weights.h"

namespace switchyard {

// The paged key/value cache's memory: one pair of tensors a layer (grouped: k and v [slots,
// kv_heads of this rank, D]; latent: one tensor [slots, kv_lora + rope] in `k`). Owned by the
// engine, written by the model.
class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype);
  static size_t BytesPerToken(const ModelConfig& config, const Mesh& mesh,
                              DType dtype);  // of one rank

  int32_t page_size() const { return page_size_; }
  DType dtype() const { return dtype_; }
  Tensor& k(int64_t layer) { return k_[layer]; }
  Tensor& v(int64_t layer) { return v_[layer]; }

 private:
  std::vector<Tensor> k_, v_;
  int32_t page_size_ = 1;
  DType dtype_ = DType::kF32;
};

// One forward pass: the new rows of every sequence of the batch, one after the other. The same on
// every TP rank.
struct ForwardBatch {
  std::vector<int32_t> tokens;     // [T]
  std::vector<int32_t> positions;  // [T]
  std::vector<int32_t> slots;      // [T] cache slot of each row's key and value
  std::vector<kernels::SequenceSpan> sequences;
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending
  bool decode = false;              // every sequence has one row

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Whether the shared expert is whole on every rank: with all-to-all backends each rank puts its own
// tokens through it.
inline bool WholeSharedExpert(const MoeOptions& moe) { return moe.a2a_backend != "none"; }

struct ModelOptions {
  DType dtype =
      DType::kBF16;        // of the cache and of token rows in flight; sums are float32 throughout
  int64_t max_tokens = 0;  // most rows of one pass: sizes activations and exchange buffers
  int64_t context_length = 0;  // positions that occur: sizes the rope table; 0: all the model has
  MoeOptions moe;
  LoadOptions load;
};

// This rank's shard of the decoder. Owns weights and activations; borrows communicators, threads
// and the cache. The rank's thread calls Forward; all ranks of the TP group call it with equal
// batches.
class Model {
 public:
  Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options, RankComm& comm,
        ThreadPool& pool);
  ~Model();

  // Logits of logit_rows, [rows, vocab], whole on every rank; valid until the next call.
  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv);

  const ModelConfig& config() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Symmetric memory that ranks of such a model need, to size the arena before they start.
size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape);

}  // namespace switchyard
