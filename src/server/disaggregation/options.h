// What both sides of a transfer are started with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "comm/host/agreement.h"
#include "comm/net/handshake.h"
#include "comm/net/tcp.h"
#include "engine/kv_transfer/kv_mover.h"
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
  std::shared_ptr<KvMover> mover;              // of ranks on GPUs; null: they are on CPUs
};

// Sends messages about a request to the ranks (Front::StartImported, Front::ReleaseKv,
// Front::WantKv). `want` may be null.
struct KvTransferTargets {
  std::function<void(uint64_t id, RequestOutput first)> start;
  std::function<void(uint64_t id, const std::string& error)> release;
  std::function<void(uint64_t id)> want;
};

// The caches of the present ranks, and the memory that they are in. Thread-safe.
class MappedCaches {
 public:
  // `mover`: as in KvTransferOptions; outlives this object.
  MappedCaches(std::shared_ptr<SharedArena> arena, RankJob job,
               std::shared_ptr<KvMover> mover = nullptr);

  // Whether Attach can be called: the ranks have allocated their caches.
  bool exported() const;
  // Maps the caches of ranks on GPUs, unless they are mapped. Errors of KvMover::Map; Error
  // kResource if a rank has not exported its cache, kInvalid if it is too small.
  void Attach();
  bool attached() const;  // true on CPUs
  // Before the ranks run: their memory has the exports of the last epoch.
  void ClearExports();

  KvMover* mover() const { return mover_.get(); }

  const std::shared_ptr<SharedArena> arena;
  KvCaches caches;

 private:
  const RankJob job_;
  const std::shared_ptr<KvMover> mover_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> memory_;  // [world] mapped; empty: not attached
};

// What must be equal on both workers, so that the decode worker continues as the prefill worker
// would.
Statement KvStatement(const RankJob& job);

// Whether the memory of another worker's ranks can be read as `job`, which that worker has sent:
// MappedCaches trusts both, and on GPUs the sizes in KvExport. `statement`: of this worker. Error
// kInvalid names the first difference; `who`: the other worker.
void CheckArena(const SharedArena& arena, const RankJob& job, const Statement& statement,
                const std::string& who);

// The number of positions of one layer that are copied or sent at once: at most a few MiB, so that
// a waiting thread waits for a short time only. At least one; the same for all layers.
int64_t PositionsPerPiece(const KvFormat& format);

// Host memory for rows or states in transfer. Error kResource names this worker and the size if
// there is not enough memory.
std::shared_ptr<std::byte> MemoryForRows(const KvTransferOptions& options, int64_t bytes);

}  // namespace switchyard
