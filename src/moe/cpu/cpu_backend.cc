#include "moe/cpu/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "moe/runners/expert_parts.h"
#include "moe/runners/runner_names.h"

namespace switchyard {
namespace {

std::shared_ptr<const MoeBackends> OrBuiltin(std::shared_ptr<const MoeBackends> backends) {
  return backends ? std::move(backends) : std::make_shared<MoeBackends>(BuiltinMoeBackends());
}

std::map<DispatchLayout, PermutePair> FindPermutes(const Dispatcher& dispatcher,
                                                   const Runner& runner,
                                                   const PermuteTable& table) {
  std::map<DispatchLayout, PermutePair> found;
  for (const DispatchLayout from : dispatcher.layouts()) {
    const PermutePair* pair = table.Find(from, runner.layout());
    CHECK(pair != nullptr);
    found[from] = *pair;
  }
  return found;
}

std::unique_ptr<Runner> MakeRunner(const MoeOptions& options, const MoeBackends& backends,
                                   bool logs_mapping) {
  const std::string name = ResolveRunner(options.runner_backend, backends);
  if (logs_mapping && name != options.runner_backend && options.runner_backend != "auto")
    LOG_INFO("--moe-runner-backend {}: mapped to {}", options.runner_backend, name);
  return backends.runners.Find(name).make();
}

}  // namespace

MoeOptions ForDraftModel(MoeOptions options) {
  if (!options.speculative_a2a_backend.empty())
    options.a2a_backend = options.speculative_a2a_backend;
  if (!options.speculative_runner_backend.empty())
    options.runner_backend = options.speculative_runner_backend;
  return options;
}

bool ScattersTokens(const MoeOptions& options, const MeshShape& mesh) {
  return options.a2a_backend != "none" || mesh.dp > 1;
}

ExchangeShape ExchangeShapeOf(const MoeOptions& options, const MoeShape& shape,
                              const MeshShape& mesh) {
  CHECK(IsRowDType(options.row_dtype));
  CHECK(options.max_dispatch_tokens_per_rank > 0 && options.long_seq_per_round_tokens > 0);
  CHECK_GE(options.num_redundant_experts, 0);
  const bool shared = options.waterfill && shape.has_shared;
  const ExpertMap experts(shape.num_experts + options.num_redundant_experts, mesh.ep, shared,
                          mesh.expert_slots);
  const std::string& dtype = options.dispatcher_output_dtype;
  const bool fp8 = dtype == "fp8" || (dtype == "auto" && options.fp8_group_activations);
  const int most_parts = options.single_batch_overlap ? kMaxCombineParts : 1;
  return {.hidden = shape.hidden,
          .k = shape.top_k + (shared ? 1 : 0),
          .num_experts = experts.size(),
          .local_experts = experts.MaxLocalExperts(),
          .max_tokens = ScattersTokens(options, mesh) ? MaxLaneTokens(mesh, shape.max_tokens)
                                                      : shape.max_tokens,
          .row_format = {options.row_dtype, fp8},
          .output_dtype = options.row_dtype,
          .ep = mesh.ep,
          .combine_rows = options.combine_rows == "rank" ? CombineRows::kRank : CombineRows::kSlot,
          .combine_parts = std::min(most_parts, experts.MaxLocalExperts())};
}

CpuMoeBackend::CpuMoeBackend(const MoeOptions& options, const MoeShape& shape, RankComm& comm,
                             ThreadPool& pool, const MoeBackends& backends)
    : MoeBackend(options, shape, comm.mesh),
      exchange_(ExchangeShapeOf(options, shape, comm.mesh.shape())),
      comm_(comm),
      groups_(Groups(comm)),
      pool_(pool),
      experts_(shape.num_experts + options.num_redundant_experts, comm.mesh.ep(),
               options.waterfill && shape.has_shared, comm.mesh.shape().expert_slots) {
  CHECK(shape.hidden > 0 && shape.num_experts > 0 && shape.top_k > 0 && shape.max_tokens > 0);
  // The time in which a GPU computes what is between two layers of experts, in decode and short
  // prompts.
  constexpr std::chrono::milliseconds kAwake(2);
  if (options.host_experts) pool.StayAwake(kAwake);
  const DispatcherContext context{options_, exchange_, experts_, comm_, pool_};
  if (const FusedBackend* fused = backends.fused.FindIf(options.a2a_backend)) {
    CHECK(options.combine_rows == "slot");
    fused_ = fused->make(context);
    runner_name_ = options.a2a_backend;
    return;
  }
  runner_ = MakeRunner(options, backends, /*logs_mapping=*/comm.mesh.rank() == 0);
  runner_name_ = ResolveRunner(options.runner_backend, backends);
  const DispatcherBackend& exchange = backends.dispatchers.Find(options.a2a_backend);
  CHECK(options.combine_rows == "slot" || exchange.combines_by_rank);
  dispatcher_ = exchange.make(context);
  permutes_ = FindPermutes(*dispatcher_, *runner_, backends.permutes);
}

PermuteContext CpuMoeBackend::permute_context() const {
  return {shape_.hidden, experts_.LocalExperts(mesh_.ep_rank()), pool_,
          runner_->expert_alignment()};
}

bool CpuMoeBackend::Supports(WeightFormat format) const {
  return fused_ ? fused_->Supports(format) : runner_->Supports(format);
}

void CpuMoeBackend::Observe(RoutingObserver* observer) {
  // A fused operator does not expose the rows that it dispatches.
  CHECK(observer == nullptr || !observer->needs_dispatch() || !fused_);
  observer_ = observer;
}

std::unique_ptr<MoeState> CpuMoeBackend::MakeState(int slot) {
  auto state = std::make_unique<CpuMoeState>(slot);
  state->timed = observer_ != nullptr;
  return state;
}

void CpuMoeBackend::SelectExchange(int64_t longest, MoeState& state) {
  state.max_round_tokens =
      fused_ ? fused_->MaxTokens(state.decode) : dispatcher_->MaxTokens(state.decode);
  state.combines_once = !fused_ && longest > state.max_round_tokens &&
                        longest <= dispatcher_->MaxCombineTokens(state.decode);
}

std::shared_ptr<CpuMoeBackend> MakeCpuMoe(const MoeOptions& options, const MoeShape& shape,
                                          RankComm& comm, ThreadPool& pool,
                                          std::shared_ptr<const MoeBackends> backends) {
  return std::make_shared<CpuMoeBackend>(options, shape, comm, pool,
                                         *OrBuiltin(std::move(backends)));
}

bool CombinesInParts(const MoeOptions& options, const MoeBackends* backends) {
  const MoeBackends builtin = backends ? MoeBackends{} : BuiltinMoeBackends();
  const MoeBackends& all = backends ? *backends : builtin;
  const DispatcherBackend* backend = all.dispatchers.FindIf(options.a2a_backend);
  return backend && backend->combines_in_parts;
}

size_t MoeSymmetricBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                         const MoeBackends* backends) {
  const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
  const MoeBackends builtin = backends ? MoeBackends{} : BuiltinMoeBackends();
  const MoeBackends& all = backends ? *backends : builtin;
  if (const FusedBackend* fused = all.fused.FindIf(options.a2a_backend))
    return fused->symmetric_bytes(options, exchange);
  return all.dispatchers.Find(options.a2a_backend).symmetric_bytes(options, exchange);
}

}  // namespace switchyard
