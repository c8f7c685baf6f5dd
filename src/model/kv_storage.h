// Memory of the paged KV cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "core/tensor.h"
#include "kernels/compressed.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/state_storage.h"

namespace switchyard {

namespace kernels {
class Device;
class ReleasableMemory;
}  // namespace kernels

// A copy of the rows of one cache slot to another slot.
using SlotMove = kernels::RowMove;

// Bytes of one token's rows in one layer, on one rank. 0: the layer has no such part.
struct KvRowBytes {
  int64_t k = 0, v = 0;

  int64_t total() const { return k + v; }
};

// Memory of the paged KV cache, per layer; none for layers without attention or with linear
// attention. Grouped attention: k and v, [slots, KV heads of the layer on this rank, D], where
// values may have another D than keys. Latent attention: one tensor [slots, kv_lora + rope] in `k`,
// and in layers with an indexer its keys [slots, index_head_dim] in `v`. Compressed attention: `k`
// [slots, head_dim], and in layers with entries their places in `v` (Entries). Owned by the engine,
// written by the model. Each attention group has its own cache, sharded over its ranks.
class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype);
  // Uses `memory`, at least Bytes bytes, and keeps its present contents. The memory must outlive
  // the storage. `padding_page`: the memory is that of a device, and has one page more.
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype, std::span<std::byte> memory, bool padding_page = false);
  // Bytes of the cache of one rank, without a page for padding rows.
  static size_t Bytes(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                      int32_t page_size, DType dtype);
  // Allocates in the memory of `device`, with one page beyond num_pages for padding rows of a
  // batch. If the device supports it, the memory is releasable.
  KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages, int32_t page_size,
            DType dtype, kernels::Device& device);
  static KvRowBytes RowBytes(const ModelConfig& config, int64_t layer, const Mesh& mesh,
                             DType dtype);
  // The sum over all layers, on one rank.
  static size_t BytesPerToken(const ModelConfig& config, const Mesh& mesh, DType dtype);

  int32_t page_size() const { return page_size_; }
  int64_t num_pages() const { return num_pages_; }
  DType dtype() const { return dtype_; }
  // The recurrent states of a model that has them, set before the first pass. Copies of this object
  // share the memory.
  StateStorage& states() { return states_; }
  void SetStates(StateStorage states) { states_ = std::move(states); }
  Tensor& k(int64_t layer) { return k_[layer]; }
  Tensor& v(int64_t layer) { return v_[layer]; }
  // The places of entries of a layer with LayerConfig::compress, and of its index entries. The page
  // size is a multiple of their span.
  kernels::EntryPlaces Entries(const ModelConfig& config, int64_t layer);
  kernels::EntryPlaces IndexEntries(const ModelConfig& config, int64_t layer);

  // Frees the memory, also that of the states, or allocates it again with zeros, at the same
  // addresses. Copies of this object share the memory. The caller drops all prefixes of the cache.
  // Errors of kernels::ReleasableMemory.
  bool releasable() const { return memory_ != nullptr; }
  void Release();
  void Restore();

  // [slots] the router fault (moe/router/router_fault.h) of the token at each slot, if this rank
  // routed it; null without experts. Records outlive their pass, so the host need not read them
  // after a pass without logits.
  int32_t* router_faults() {
    return router_faults_.defined() ? router_faults_.data<int32_t>() : nullptr;
  }
  // Copies keys, values and router faults of all layers, move by move, after the ops that `device`
  // has enqueued. The cache is in its memory. No move reads a slot that an earlier one has written.
  void MoveRows(std::span<const SlotMove> moves, kernels::Device& device);
  // The first fault of each sequence, over all its keys; 0: none. The cache is in the memory of
  // `device`. Waits for the device.
  std::vector<int32_t> RouterFaultsOf(std::span<const kernels::SequenceSpan> sequences,
                                      kernels::Device& device) const;

 private:
  // Adds the parts of all layers. `allocate(bytes of a token's row, dtype)` returns the tensor of a
  // part.
  template <typename Allocate>
  void AddLayers(const ModelConfig& config, const Mesh& mesh, const Allocate& allocate);

  std::shared_ptr<kernels::ReleasableMemory> memory_;  // of all tensors, if it is releasable
  std::vector<Tensor> k_, v_;
  Tensor router_faults_;
  StateStorage states_;
  int64_t num_pages_ = 0;
  int32_t page_size_ = 1;
  DType dtype_ = DType::kF32;
};

}  // namespace switchyard
