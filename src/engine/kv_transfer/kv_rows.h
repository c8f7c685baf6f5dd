// Rows of KV caches in memory, and copies between caches of different layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "core/dtype.h"
#include "engine/config.h"
#include "engine/kv_transfer/kv_mover.h"
#include "engine/kv_transfer/kv_progress.h"
#include "engine/kv_transfer/kv_states.h"
#include "model/config.h"
#include "model/kv_storage.h"
#include "model/state_storage.h"
#include "model/weights/shard.h"

namespace switchyard {

// What a layer has of a sequence: rows of keys and values, a recurrent state, both (compressed
// attention), or nothing.
//
// The rows of a layer. Their canonical order is: all keys, then all values, each by position, then
// by KV head. A row is one head of one position, in the storage format of the cache
// (kernels/cache_rows.h). Latent attention has one "head" of keys, the latent. It has no values, or
// the keys of its indexer in their place. So has compressed attention, with the slots of its
// entries in the place of values (KvStorage::Entries).
struct KvLayerFormat {
  int64_t heads = 0;        // KV heads of the layer; latent: 1; 0: no rows
  int64_t key_bytes = 0;    // of a row
  int64_t value_bytes = 0;  // of a row; latent: 0, or an index key's
  int64_t state_heads = 0;  // KvStateFormat::heads of its state; 0: no state
  int64_t state_bytes = 0;  // KvStateFormat::HeadBytes

  int64_t StateBytes() const { return state_heads * state_bytes; }
  int64_t Bytes(int64_t positions) const { return positions * heads * (key_bytes + value_bytes); }
  bool operator==(const KvLayerFormat&) const = default;
};

// What two engines must have in common to exchange rows. Mesh and page size may differ.
struct KvFormat {
  std::vector<KvLayerFormat> layers;
  DType dtype = DType::kF32;
  KvStateFormat states;
  // Rows of this many adjacent positions, from a multiple of it on, share places of entries
  // (kernels::kEntrySlots). They are sent again if a later pass adds one of them. 1: no entries.
  int64_t shared_rows = 1;

  static KvFormat Of(const ModelConfig& model, DType dtype);
  // With the layers of the draft model, if there is one, after those of the model.
  static KvFormat Of(const EnginePlan& plan);
  int64_t num_layers() const { return std::ssize(layers); }
  bool has_states() const { return states.any(); }
  // The largest number of bytes of one position in a layer.
  int64_t LargestPosition() const;
  // "24 layers, 8 heads of 256 + 256 bytes (bfloat16)". With different layers, each run of equal
  // ones: "3 layers, states of 16 heads of 134656 bytes, then 1 layer, 2 heads of 512 + 512 bytes
  // (...)".
  std::string Text() const;
};

// One layer of a cache as one rank holds it, or as a buffer holds it: rows [slots, heads] of keys
// and of values.
struct KvShard {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;  // null: none
  Range heads;                  // of the model
};

// One layer of the cache of an attention group, with the pages of one request. Borrows all memory.
struct KvLayerRows {
  std::span<const KvShard> shards;  // every head is in one of them, or in several with equal rows
  std::span<const int32_t> pages;   // in order of position
  int64_t page_size = 1;
  int64_t num_pages = 0;  // of the memory
  int64_t first = 0;      // the first position of pages[0]
};

// Copies the rows of the positions [begin, end) from one cache to all shards of another. `mover`:
// makes the copies if memory of a GPU is among them; null: all is host memory. Error kInvalid if a
// page is out of range, or there are too few pages.
void CopyKvRows(const KvLayerFormat& format, const KvLayerRows& from, const KvLayerRows& to,
                int64_t begin, int64_t end, KvMover* mover = nullptr);

// The caches of all ranks of an engine, those of a draft model included: on CPUs in shared memory,
// on GPUs in memory that the ranks export. Used by the process that started the ranks, while they
// run. Views only: the memory must outlive this object.
class KvCaches {
 public:
  // `kept` [world]: SharedArena::Kept of each rank. On GPUs, Attach precedes Layer, State and
  // ClearFaults.
  KvCaches(const EngineConfig& config, const EnginePlan& plan,
           const std::vector<std::span<std::byte>>& kept);
  // Sets the memory of the caches of each rank [world] on GPUs (ExportedCaches).
  void Attach(const EngineConfig& config, const EnginePlan& plan,
              const std::vector<std::span<std::byte>>& caches);

  const KvFormat& format() const { return format_; }
  int groups() const { return mesh_.dp; }
  // `pages` must outlive the result.
  KvLayerRows Layer(int group, int64_t layer, std::span<const int32_t> pages) const;
  // The state of a layer in a slot, on all ranks of the group; empty: the layer has none. Error
  // kInvalid if there is no such slot.
  std::vector<KvStateShard> State(int group, int64_t layer, int32_t slot) const;
  // The first layers that all ranks of the group have computed in this pass (KvProgress), without
  // those of a draft model, which runs after the pass. With pipeline stages, a stage that is in a
  // later pass has computed its layers, also of a draft model: no pass of such an engine is
  // aborted.
  int64_t LayersOf(int group, uint64_t pass) const;
  // Rings when a rank on a CPU has computed a layer of a pass.
  KvBell bell() const { return bell_; }
  // Clears the router faults (KvStorage::router_faults) that earlier rows at these positions had.
  // `mover`: of caches on GPUs; else null.
  void ClearFaults(int group, std::span<const int32_t> pages, int64_t begin, int64_t end,
                   KvMover* mover = nullptr);

 private:
  struct StateShard {
    KvStateShard first;  // of slot 0
    int64_t slot_floats = 0;
  };
  // Adds the shards of each layer that a stage has of an attention group. `storages` [tp]: of the
  // ranks of the stage.
  void AddShards(const ModelConfig& model, int group, int stage, std::span<KvStorage> storages);
  // The states of a layer of a stage, on one of its ranks.
  StateShard StateOf(const ModelConfig& model, int64_t layer, int64_t rank);
  // The ranks of an attention group in a stage.
  Range RanksOf(int group, int stage) const;

  KvFormat format_;
  MeshShape mesh_;
  int64_t num_pages_ = 0, page_size_ = 1, num_states_ = 0;
  std::vector<int64_t> stage_layers_;  // [pp]
  int64_t draft_layers_ = 0;
  std::vector<KvStorage> storages_;   // [world]
  std::vector<KvStorage> drafts_;     // [tp] of the draft model; empty: none
  std::vector<StateStorage> states_;  // [world]
  std::vector<KvProgress> progress_;  // [world]
  KvBell bell_;
  std::vector<std::vector<KvShard>> shards_;           // [groups · layers][attn_tp]; [0]: no rows
  std::vector<std::vector<StateShard>> state_shards_;  // [groups · layers][attn_tp]; [0]: no state
};

// Rows of the positions [begin, end) of one layer in the canonical order, as a cache with one page.
// Borrows the memory, of at least format.Bytes(end − begin).
class CanonicalRows {
 public:
  CanonicalRows(const KvLayerFormat& format, int64_t begin, int64_t end,
                std::span<std::byte> memory);
  KvLayerRows rows() const;  // valid as long as this object

 private:
  KvShard shard_;
  int64_t begin_, count_;
};

}  // namespace switchyard
