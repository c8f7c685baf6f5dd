// Submission and delivery for ranks that are threads of this process, independent of the model.
#pragma once

#include <functional>
#include <memory>

#include "comm/device/symmetric_memory.h"
#include "engine/dp_controller.h"
#include "engine/engine.h"
#include "engine/rank_engine.h"

namespace switchyard {

// Runs `body` on one thread for each rank, passes submitted requests to the leader's RankLoopIo,
// and passes outputs to their callbacks on the leader's thread. Thread-safe.
class ThreadEngine {
 public:
  using RankBody = std::function<void(int rank, std::shared_ptr<SharedArena>, const RankLoopIo&)>;

  // Returns after the leader's RankReady; rethrows an earlier exception of a rank. `controller`
  // chooses the attention group of each request.
  ThreadEngine(int world, size_t bytes_per_rank, RankBody body,
               std::function<void(uint64_t, uint64_t)> progress, DpController controller = {});
  ~ThreadEngine();  // aborts open requests, notifies their callbacks, and joins the ranks

  // Error kPeer if the ranks have failed, kInvalid if the request names a nonexistent group.
  uint64_t Submit(EngineRequest request, Engine::Callback on_output);
  void Abort(uint64_t id);
  void Tell(ControlMessage message);  // a message without an answer, such as DefineGrammar
  std::vector<EngineStats> Stats();   // one entry per attention group
  bool FlushCache();                  // FlushResult::done

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
