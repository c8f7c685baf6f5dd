// The server as a library: the requests of this process, without a network.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/offline/call.h"
#include "server/offline/notifier.h"

namespace switchyard::offline {

// Thrown by Engine's constructor after `interrupted` has returned true.
struct Interrupted {};

// Loads a checkpoint and serves calls on rank threads of this process. Behind it are the same
// request parsers, front and rank loop as behind `switchyard serve`. Several engines may exist.
// Thread-safe. Shutdown ends open calls, but does not wait for members that other threads are
// running.
class Engine {
 public:
  // `words`: the flags of `switchyard serve`. Flags that concern the network, several hosts or the
  // restart of ranks are refused. `interrupted` is called about ten times a second on this thread
  // while the model loads; if it returns true, loading ends and Interrupted is thrown.
  explicit Engine(const std::vector<std::string>& words,
                  const std::function<bool()>& interrupted = {});
  // Calls Shutdown. A process that was forked from the engine's process has no threads of the
  // engine. There, the destructor does nothing and leaks the memory.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `body`: JSON object of POST /generate. Unlike over HTTP, an unknown field is refused. Throws an
  // Error that names the field. `notifier` may be null.
  std::unique_ptr<GenerateCall> Generate(const std::string& body,
                                         std::shared_ptr<Notifier> notifier = nullptr);
  // A request to any route of the server, such as POST /v1/chat/completions. `body` is JSON text or
  // empty.
  std::unique_ptr<RouteCall> Request(const std::string& method, const std::string& path,
                                     const std::string& body,
                                     std::shared_ptr<Notifier> notifier = nullptr);
  // The text of one token alone, as in SGLang's log-probabilities.
  std::string TokenText(int32_t token) const;

  // Aborts open calls and ends the ranks. Later calls throw kUnavailable. May be called again.
  void Shutdown();

  struct Impl;  // service.h

 private:
  std::shared_ptr<Impl> impl_;  // also held by calls
};

}  // namespace switchyard::offline
