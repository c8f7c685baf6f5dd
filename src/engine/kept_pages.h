// A rank's KV cache in memory that outlives the rank's process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "comm/device/communicator.h"
#include "engine/config.h"
#include "engine/kv_cache/page_records.h"
#include "engine/kv_transfer/kv_mover.h"
#include "engine/kv_transfer/kv_progress.h"
#include "model/kv_storage.h"
#include "model/state_storage.h"
#include "schedule/operation.h"

namespace switchyard {

// The cache and the records of its pages, in a rank's kept memory (SharedArena::Kept). After the
// end of a rank, the ranks of the next epoch continue requests from these pages. On GPUs, the kept
// memory has the records only, and the cache is in KeptGpuMemory.
// Owned by the rank's loop for one epoch; borrows the memory.
struct KeptPages {
  // Bytes of kept memory of each rank, for SharedArena::Create. `plan`: of the whole model; the
  // other members take the plan of the rank's pipeline stage. 0 without a prefix cache, or with
  // recurrent states, unless another engine reads or writes the pages (--disaggregation-mode). On
  // GPUs there is no room for caches: only for the records with KeepsGpuCache, and for the progress
  // and a KvExport with --disaggregation-mode.
  static size_t BytesPerRank(const EngineConfig& config, const EnginePlan& plan);
  // A view of the cache in the kept memory of the rank `mesh.rank()`, for the process that started
  // the rank. On GPUs, `memory` is that of ExportedCaches.
  static KvStorage Storage(std::span<std::byte> memory, const EngineConfig& config,
                           const EnginePlan& plan, const Mesh& mesh);
  // The same for the recurrent states; empty without them.
  static StateStorage States(std::span<std::byte> memory, const EngineConfig& config,
                             const EnginePlan& plan, const Mesh& mesh);
  // The same for the cache of the draft model. `plan.draft` is set.
  static KvStorage DraftStorage(std::span<std::byte> memory, const EngineConfig& config,
                                const EnginePlan& plan, const Mesh& mesh);

  // For ModelOptions::before_operation: publishes the progress of each pass (KvProgress), if
  // another engine reads the pages. Null otherwise. With two micro-batches, whose layers
  // interleave, a layer counts once both have its keys and values. `gpu`: publishes in the order of
  // a GPU's stream; set before the first pass, and outlives the result. Not for passes with two
  // micro-batches, which use several streams. Null: on CPUs, which ring the bell in `first`, the
  // kept memory of rank 0.
  static std::function<void(uint64_t pass, int micro_batches, const schedule::Operation& operation)>
  PublishTo(std::span<std::byte> memory, std::span<std::byte> first, const EngineConfig& config,
            const EnginePlan& plan, const KvPublisher* gpu = nullptr);
  // The progress of the rank with this kept memory, and the bell of all ranks in that of rank 0.
  static KvProgress Progress(std::span<std::byte> memory) { return KvProgress(memory); }
  static KvBell Bell(std::span<std::byte> memory) { return KvBell(memory); }

  // Drops the records of pages whose records differ between ranks of the attention group.
  // Collective over that group. `has_cache`: false if the cache has lost its contents, on a GPU.
  KeptPages(std::span<std::byte> memory, const EngineConfig& config, const EnginePlan& plan,
            RankComm& comm, bool has_cache = true);

  PageRecords records;
  KvStorage kv;                       // on CPUs; so are the members below
  std::optional<KvStorage> draft_kv;  // cache of the draft model, if there is one
  StateStorage states;                // of layers with recurrent states, if there are any
};

// A rank's caches in GPU memory that other processes of the host map (KvExport): with
// --disaggregation-mode. Unlike other caches on GPUs, they cannot be released. Owned by the rank's
// loop for one epoch; the storages borrow the memory.
struct ExportedCaches {
  // Bytes of GPU memory of a rank. `plan`: of the rank's pipeline stage.
  static size_t Bytes(const EngineConfig& config, const EnginePlan& plan, const Mesh& mesh);

  // Allocates zeroed memory, and writes its KvExport to `kept`. Error kResource if there is too
  // little memory, or no CUDA IPC.
  ExportedCaches(std::span<std::byte> kept, const EngineConfig& config, const EnginePlan& plan,
                 const Mesh& mesh, kernels::Device& device);

  std::shared_ptr<void> memory;
  KvStorage kv;
  std::optional<KvStorage> draft_kv;  // cache of the draft model, if there is one
  StateStorage states;                // of layers with recurrent states, if there are any
};

}  // namespace switchyard
