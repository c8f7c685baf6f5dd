// The engine as a library: loads a checkpoint and generates, on rank threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/request.h"

namespace switchyard {

// Takes token ids and returns token ids (for text: text/tokenizer, text/chat). Thread-safe. Ranks
// are threads of this process. `switchyard serve` runs the same rank loop, with one process for
// each rank.
class Engine {
 public:
  // Called on a thread of the engine; must not block.
  using Callback = std::function<void(const RequestOutput&)>;

  // Returns when the model is loaded. `progress` gets the leader's loaded bytes and total bytes.
  explicit Engine(const EngineConfig& config,
                  std::function<void(uint64_t, uint64_t)> progress = {});
  ~Engine();  // aborts running requests

  // Queues a request and returns its id. `on_output` is called with each output, up to and
  // including the finished one.
  uint64_t Submit(EngineRequest request, Callback on_output);
  void Abort(uint64_t id);
  // Sends a message that has no answer. GrammarTokens and then DefineGrammar must precede requests
  // with the grammar's id.
  void Tell(ControlMessage message);
  // Submits, waits and returns all tokens; Error if the request fails.
  RequestOutput Generate(EngineRequest request);
  std::vector<EngineStats> Stats();  // one entry per attention group; Total computes their sum
  // Drops the reusable prefixes. Returns false if a group has open requests; such a group keeps its
  // prefixes.
  bool FlushCache();

  const EnginePlan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
