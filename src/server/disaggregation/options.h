// What both sides of a transfer are started with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/device/symmetric_memory.h"
#include "comm/host/agreement.h"
#include "comm/net/handshake.h"
#include "comm/net/tcp.h"
#include "engine/kv_transfer/kv_rows.h"
#include "engine/request.h"
#include "server/front/rank_spec.h"

namespace switchyard {

struct KvTransferOptions {
  RankJob job;                                 // of this server's ranks
  std::string backend = "tcp";                 // --disaggregation-transfer-backend: shm or tcp
  ConnectionKey key;                           // from --dist-secret-file
  HostPort bootstrap;                          // where a prefill worker listens
  std::chrono::milliseconds timeout{300'000};  // --disaggregation-timeout
};

// Sends messages about a request to the ranks (Front::StartImported, Front::ReleaseKv,
// Front::WantKv). `want` may be null.
struct KvTransferTargets {
  std::function<void(uint64_t id, RequestOutput first)> start;
  std::function<void(uint64_t id, const std::string& error)> release;
  std::function<void(uint64_t id)> want;
};

// The caches of the present ranks, and the memory that they are in.
struct MappedCaches {
  MappedCaches(std::shared_ptr<SharedArena> arena, const RankJob& job);

  const std::shared_ptr<SharedArena> arena;
  KvCaches caches;
};

// What must be equal on both workers, so that the decode worker continues as the prefill worker
// would.
Statement KvStatement(const RankJob& job);

// Whether the memory of another worker's ranks can be read as `job`, which that worker has sent:
// MappedCaches trusts both. `statement`: of this worker. Error kInvalid names the first difference;
// `who`: the other worker.
void CheckArena(const SharedArena& arena, const RankJob& job, const Statement& statement,
                const std::string& who);

// The number of positions of one layer that are copied or sent at once: at most a few MiB, so that
// a waiting thread waits for a short time only. At least one; the same for all layers.
int64_t PositionsPerPiece(const KvFormat& format);

}  // namespace switchyard
