#include "server/front/front_setup.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "grammar/source.h"

namespace switchyard {
namespace {

// Limit of running and queued requests together; 0: no limit.
int32_t MaxOpen(const EngineConfig& config, const EnginePlan& plan, int64_t queued_per_running) {
  const int64_t running = int64_t{plan.max_running_requests} * config.mesh.dp;
  const int64_t queued = config.max_queued_requests < 0 ? queued_per_running * running
                                                        : int64_t{config.max_queued_requests};
  if (queued == 0) return 0;
  return static_cast<int32_t>(
      std::min<int64_t>(running + queued, std::numeric_limits<int32_t>::max()));
}

}  // namespace

Front::Limits FrontLimits(const ServerArgs& args, const EnginePlan& plan,
                          int64_t queued_per_running) {
  const EngineConfig& config = args.engine;
  return {.vocab_size = plan.model.vocab_size,
          .context_length = plan.context_length,
          .cache_tokens = plan.num_pages * config.page_size,
          .max_open = MaxOpen(config, plan, queued_per_running),
          .has_experts = plan.model.has_moe() && config.mesh.pp == 1,
          .pooling = plan.model.pooling ? plan.model.pooling->type : Pooling::kNone,
          .queue_timeout = std::chrono::duration<double>(args.http.queue_timeout_seconds),
          .running_timeout = std::chrono::duration<double>(args.http.running_timeout_seconds)};
}

std::unique_ptr<Grammars> MakeGrammars(const ServerArgs& args, const ServedModel& model) {
  if (args.grammar_backend == "none") return nullptr;
  // White space of constrained JSON, unless a request chooses another one.
  const JsonSpace space = args.json_disable_any_whitespace
                              ? JsonSpace::kPython
                              : *JsonSpaceOfPattern(args.json_whitespace);
  return std::make_unique<Grammars>(*model.tokenizer, model.config.vocab_size,
                                    model.config.eos_token_ids, space);
}

}  // namespace switchyard
