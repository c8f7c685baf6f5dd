// A rank's KV cache in memory that outlives the rank's process.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "comm/device/communicator.h"
#include "engine/config.h"
#include "engine/kv_cache/page_records.h"
#include "model/kv_storage.h"

namespace switchyard {

// The cache and the records of its pages, in a rank's kept memory (SharedArena::Kept). After the
// end of a rank, the ranks of the next epoch continue requests from these pages. On CPUs only.
// Owned by the rank's loop for one epoch; borrows the memory.
struct KeptPages {
  // Bytes of kept memory of each rank, for SharedArena::Create. 0 on GPUs and without a prefix
  // cache, where nothing is kept.
  static size_t BytesPerRank(const EngineConfig& config, const EnginePlan& plan);

  // Drops the records of pages whose records differ between ranks of the attention group.
  // Collective over that group.
  KeptPages(std::span<std::byte> memory, const EngineConfig& config, const EnginePlan& plan,
            RankComm& comm);

  PageRecords records;
  KvStorage kv;
  std::optional<KvStorage> draft_kv;  // cache of the draft model, if there is one
};

}  // namespace switchyard
