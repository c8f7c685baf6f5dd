#include "server/offline/engine.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "moe/backends.h"
#include "server/front/served_model.h"
#include "server/http_setup.h"
#include "server/offline/service.h"
#include "server/ranks/served_layout.h"

namespace switchyard::offline {
namespace {

using namespace std::chrono_literals;

// By default there is no limit: the caller's own memory holds the queue.
constexpr int64_t kQueuedPerRunning = 0;

ServerArgs PreparedArgs(const std::vector<std::string>& words) {
  ServerArgs args = ParseArgs(words);
  // The logger belongs to the process: the first engine sets it up.
  static std::once_flag once;
  std::call_once(once, [&] { InitLog(args.engine.log_level); });
  args.engine.backends = std::make_shared<const MoeBackends>(BuiltinMoeBackends());
  ReplaceForeignA2a(&args.engine);
  return args;
}

EnginePlan PlanOf(const ServerArgs& args, const std::function<bool()>& interrupted) {
  // --verify-weights reads on several threads; `interrupted` is for the caller's thread only.
  std::atomic<bool> stop{false};
  const auto stops = [&, caller = std::this_thread::get_id()] {
    if (interrupted && std::this_thread::get_id() == caller && interrupted()) stop = true;
    return stop.load();
  };
  if (!CheckWeights(args, stops)) throw Interrupted();
  return MakePlan(args.engine);
}

}  // namespace

Engine::Impl::Impl(const std::vector<std::string>& words, const std::function<bool()>& interrupted)
    : process(getpid()),
      args(PreparedArgs(words)),
      plan(PlanOf(args, interrupted)),
      model(LoadServedModel(args, plan.model)),
      front(link, *model.tokenizer, FrontLimits(args, plan, kQueuedPerRunning),
            MakeDpController(args.engine)),
      grammars(MakeGrammars(args, model)),
      service{front, model, args, plan, grammars.get()},
      routes(http::ServerOptions()),
      ranks(args, plan, front, link) {
  front.SetWeightVersion(args.weight_version);
  RegisterEndpoints(routes, service);
  service.weights = &ranks;
  if (!ranks.Start(interrupted)) throw Interrupted();
  service.ready = true;
}

void Engine::Impl::Require() const {
  if (getpid() != process)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("this engine belongs to process {}, from which this one was forked", process),
        "create the engine in the process that uses it");
  if (ended_) throw Error(ErrorKind::kUnavailable, "the engine has been shut down");
}

void Engine::Impl::Shutdown() {
  const std::lock_guard lock(shutdown_mutex_);
  if (ended_.exchange(true)) return;
  front.StartDraining();
  if (!front.ranks_lost()) {
    front.AbortAll();
    front.WaitUntilIdle(5s);
  }
  ranks.Stop();
  front.OnRanksLost("the engine has been shut down");  // ends calls that are still open
}

Engine::Engine(const std::vector<std::string>& words, const std::function<bool()>& interrupted)
    : impl_(std::make_shared<Impl>(words, interrupted)) {}

Engine::~Engine() {
  if (getpid() == impl_->process) {
    impl_->Shutdown();
  } else {
    // Leaked, because its destructor would join threads.
    [[maybe_unused]] const auto* leaked = new (std::nothrow) std::shared_ptr<Impl>(impl_);
  }
}

std::unique_ptr<GenerateCall> Engine::Generate(const std::string& body,
                                               std::shared_ptr<Notifier> notifier) {
  impl_->Require();
  return StartGenerate(impl_, body, std::move(notifier));
}

std::unique_ptr<RouteCall> Engine::Request(const std::string& method, const std::string& path,
                                           const std::string& body,
                                           std::shared_ptr<Notifier> notifier) {
  impl_->Require();
  return StartRequest(impl_, method, path, body, std::move(notifier));
}

std::string Engine::TokenText(int32_t token) const {
  return impl_->model.tokenizer->TokenText(token);
}

void Engine::Shutdown() {
  if (getpid() == impl_->process) impl_->Shutdown();
}

}  // namespace switchyard::offline
