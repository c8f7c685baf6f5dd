// The parts behind an engine in this process. Internal to server/offline.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/offline/engine.h"
#include "server/offline/local_weights.h"

namespace switchyard::offline {

// Parses the flags. Throws kInvalid for a flag that has no meaning without a network or with ranks
// that are threads, and for flags that only print something.
ServerArgs ParseArgs(const std::vector<std::string>& words);

// Held by the Engine and by its calls, so that a call may outlive the engine.
struct Engine::Impl {
  Impl(const std::vector<std::string>& words, const std::function<bool()>& interrupted);
  ~Impl() { Shutdown(); }

  // Throws kUnavailable after Shutdown, and in a forked process.
  void Require() const;
  void Shutdown();

  const pid_t process;
  const ServerArgs args;
  const EnginePlan plan;
  const ServedModel model;
  LocalLink link;  // to the ranks, which are constructed after the front
  Front front;
  const std::unique_ptr<Grammars> grammars;  // null: --grammar-backend none
  Service service;
  http::Server routes;  // never started: a table of handlers
  LocalWeights ranks;

 private:
  std::mutex shutdown_mutex_;
  std::atomic<bool> ended_{false};
};

// Calls (generate_call.cc, route_call.cc).
std::unique_ptr<GenerateCall> StartGenerate(std::shared_ptr<Engine::Impl> engine,
                                            const std::string& body,
                                            std::shared_ptr<Notifier> notifier);
std::unique_ptr<RouteCall> StartRequest(std::shared_ptr<Engine::Impl> engine,
                                        const std::string& method, const std::string& path,
                                        const std::string& body,
                                        std::shared_ptr<Notifier> notifier);

}  // namespace switchyard::offline
