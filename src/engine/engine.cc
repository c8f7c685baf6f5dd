#include "engine/engine.h"

#include <future>
#include <utility>

#include "core/error.h"
#include "engine/thread_engine.h"

namespace switchyard {
namespace {

EnginePlan PlanOfThreads(const EngineConfig& config) {
  if (config.spare_ranks > 0)
    throw Invalid("--spare-ranks {}: the ranks of this engine are threads, which are not restarted",
                  config.spare_ranks);
  return MakePlan(config);
}

}  // namespace

struct Engine::Impl {
  Impl(const EngineConfig& config, std::function<void(uint64_t, uint64_t)> progress)
      : plan(PlanOfThreads(config)),
        ranks(
            config.mesh.world(), plan.symmetric_bytes_per_rank,
            [this, config](int rank, const std::shared_ptr<SharedArena>& arena,
                           const RankLoopIo& io) { RunRankLoop(config, plan, rank, arena, io); },
            std::move(progress), MakeDpController(config)) {}

  const EnginePlan plan;
  ThreadEngine ranks;
};

Engine::Engine(const EngineConfig& config, std::function<void(uint64_t, uint64_t)> progress)
    : impl_(std::make_unique<Impl>(config, std::move(progress))) {}
Engine::~Engine() = default;

uint64_t Engine::Submit(EngineRequest request, Callback on_output) {
  return impl_->ranks.Submit(std::move(request), std::move(on_output));
}
void Engine::Abort(uint64_t id) { impl_->ranks.Abort(id); }
void Engine::Tell(ControlMessage message) { impl_->ranks.Tell(std::move(message)); }
std::vector<EngineStats> Engine::Stats() { return impl_->ranks.Stats(); }
bool Engine::FlushCache() { return impl_->ranks.FlushCache(); }
const EnginePlan& Engine::plan() const { return impl_->plan; }

RequestOutput Engine::Generate(EngineRequest request) {
  // Shared, because set_value may still run after the wait has returned.
  const auto finished = std::make_shared<std::promise<void>>();
  RequestOutput all;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  Submit(std::move(request), [&all, append, finished](const RequestOutput& news) {
    RequestOutput next = news;
    std::swap(next.new_tokens, all.new_tokens);
    std::swap(next.input_logprobs, all.input_logprobs);
    std::swap(next.output_logprobs, all.output_logprobs);
    std::swap(next.routed_experts, all.routed_experts);
    append(next.new_tokens, news.new_tokens);
    append(next.input_logprobs, news.input_logprobs);
    append(next.output_logprobs, news.output_logprobs);
    append(next.routed_experts, news.routed_experts);
    all = std::move(next);
    if (all.finish != FinishReason::kNone) finished->set_value();
  });
  finished->get_future().wait();
  if (all.finish == FinishReason::kError) throw Error(all.error_kind, all.error);
  return all;
}

}  // namespace switchyard
