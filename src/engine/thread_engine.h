// Requests and answers around ranks that are threads of this process, apart from any model.
#pragma once

#include <functional>
#include <memory>

#include "comm/device/symmetric_memory.h"
#include "engine/dp_controller.h"
#include "engine/engine.h"
#include "engine/rank_engine.h"

namespace switchyard {

// Runs `body` on one thread for each rank, feeds the leader's RankLoopIo with what callers submit,
// and hands outputs to their callbacks on the leader's thread. Thread-safe.
class ThreadEngine {
 public:
  using RankBody = std::function<void(int rank, std::shared_ptr<SharedArena>, const RankLoopIo&)>;

  // Returns after the leader's RankReady; rethrows what a rank threw before it. `controller`
  // chooses the attention group of each request.
  ThreadEngine(int world, size_t bytes_per_rank, RankBody body,
               std::function<void(uint64_t, uint64_t)> progress, DpController controller = {});
  ~ThreadEngine();  // aborts open requests, whose callbacks hear of it, and joins the ranks

  // Error kPeer where the ranks have failed, kInvalid where the request names a group that is not.
  uint64_t Submit(EngineRequest request, Engine::Callback on_output);
  void Abort(uint64_t id);
  std::vector<EngineStats> Stats();  // of each attention group
  bool FlushCache();                 // FlushResult::done

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
