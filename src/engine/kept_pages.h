// A rank's KV cache in memory that outlives the rank's process.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "comm/device/communicator.h"
#include "engine/config.h"
#include "engine/kv_cache/page_records.h"
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
  // other members take the plan of the rank's pipeline stage. Bytes of the records on GPUs with
  // KeepsGpuCache, else 0. Also 0 without a prefix cache, or with recurrent states, unless another
  // engine reads or writes the pages (--disaggregation-mode).
  static size_t BytesPerRank(const EngineConfig& config, const EnginePlan& plan);
  // A view of the cache in the kept memory of the rank `mesh.rank()`, for the process that started
  // the rank.
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
  // interleave, a layer counts once both have its keys and values.
  static std::function<void(uint64_t pass, int micro_batches, const schedule::Operation& operation)>
  PublishTo(std::span<std::byte> memory, const EngineConfig& config, const EnginePlan& plan);
  // The progress of the rank with this kept memory.
  static KvProgress Progress(std::span<std::byte> memory) { return KvProgress(memory); }

  // Drops the records of pages whose records differ between ranks of the attention group.
  // Collective over that group. `has_cache`: false if the cache has lost its contents, on a GPU.
  KeptPages(std::span<std::byte> memory, const EngineConfig& config, const EnginePlan& plan,
            RankComm& comm, bool has_cache = true);

  PageRecords records;
  KvStorage kv;                       // on CPUs; so are the members below
  std::optional<KvStorage> draft_kv;  // cache of the draft model, if there is one
  StateStorage states;                // of layers with recurrent states, if there are any
};

}  // namespace switchyard
