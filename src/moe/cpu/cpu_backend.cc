#include "moe/cpu/cpu_backend.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "moe/runners/expert_parts.h"
#include "moe/runners/runner_names.h"

namespace switchyard {
namespace {

void CheckOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  if (!IsRowDType(options.row_dtype))
    throw Invalid("--dtype {}: token rows are exchanged as float32, bfloat16 or float16",
                  Name(options.row_dtype));
  if (options.max_dispatch_tokens_per_rank < 1)
    throw Invalid("--num-max-dispatch-tokens-per-rank {}: want at least 1",
                  options.max_dispatch_tokens_per_rank);
  if (options.long_seq_per_round_tokens < 1)
    throw Invalid("--deepep-normal-long-seq-per-round-tokens {}: want at least 1",
                  options.long_seq_per_round_tokens);
  if (options.long_seq_rounds < 0)
    throw Invalid("--deepep-normal-long-seq-round {}: want at least 0", options.long_seq_rounds);
  const double patience = options.elastic_timeout_seconds;
  if (!(patience >= 0.001 && patience <= 86400))
    throw Invalid("--elastic-ep-timeout {}: want 0.001 to 86400 seconds", patience);
  const std::string& dtype = options.dispatcher_output_dtype;
  if (dtype != "auto" && dtype != "bf16" && dtype != "fp8")
    throw Invalid("--deepep-dispatcher-output-dtype {}: want auto, bf16 or fp8", dtype);
  if (options.combine_rows != "slot" && options.combine_rows != "rank")
    throw Invalid("--moe-combine-rows {}: want slot or rank", options.combine_rows);
  if (options.num_redundant_experts < 0)
    throw Invalid("--ep-num-redundant-experts {}: want at least 0", options.num_redundant_experts);
  if (options.waterfill && shape.has_shared && mesh.ep != mesh.tp)
    throw Invalid(
        "--enable-deepep-waterfill needs whole shared experts on each rank: want --ep {} (equal to "
        "--tp), not {}",
        mesh.tp, mesh.ep);
  if (options.waterfill && shape.has_shared && shape.scales_input)
    throw Invalid(
        "--enable-deepep-waterfill: this model scales the input rows of routed experts but not of "
        "the shared expert, so the two cannot share a dispatched row; leave the flag out");
  if (options.waterfill && !ScattersTokens(options, mesh))
    throw Invalid("--enable-deepep-waterfill: --moe-a2a-backend none sends no rows; want deepep");
}

std::shared_ptr<const MoeBackends> OrBuiltin(std::shared_ptr<const MoeBackends> backends) {
  return backends ? std::move(backends) : std::make_shared<MoeBackends>(BuiltinMoeBackends());
}

std::map<DispatchLayout, PermutePair> FindPermutes(const MoeOptions& options,
                                                   const Dispatcher& dispatcher,
                                                   const Runner& runner,
                                                   const PermuteTable& table) {
  std::map<DispatchLayout, PermutePair> found;
  for (const DispatchLayout from : dispatcher.layouts()) {
    const PermutePair* pair = table.Find(from, runner.layout());
    if (!pair)
      throw Invalid(
          "--moe-a2a-backend {} delivers layout {}, which no permute converts to layout {} of "
          "--moe-runner-backend {}; available permutes: {}",
          options.a2a_backend, Name(from), Name(runner.layout()), options.runner_backend,
          table.Pairs());
    found[from] = *pair;
  }
  return found;
}

void CheckFusedRunner(const MoeOptions& options) {
  if (options.runner_backend != "auto" && options.runner_backend != options.a2a_backend)
    throw Invalid(
        "--moe-a2a-backend {} computes the experts itself; --moe-runner-backend {} conflicts with "
        "it, want auto",
        options.a2a_backend, options.runner_backend);
}

void CheckCombineRows(const MoeOptions& options, const MoeBackends& backends) {
  if (options.combine_rows == "slot") return;
  const DispatcherBackend* backend = backends.dispatchers.FindIf(options.a2a_backend);
  if (backend == nullptr || !backend->combines_by_rank)
    throw Invalid(
        "--moe-combine-rows {}: --moe-a2a-backend {} combines slot by slot; want deepep, "
        "mooncake or --moe-combine-rows slot",
        options.combine_rows, options.a2a_backend);
}

void CheckPair(const MoeOptions& options, const MoeBackends& backends) {
  CheckA2aName(options.a2a_backend, backends);
  CheckCombineRows(options, backends);
  if (backends.fused.FindIf(options.a2a_backend)) return CheckFusedRunner(options);
  ResolveRunner(options.runner_backend, backends);
}

// Checks the names of all backends, including those of the draft model, before anything is built.
void CheckNames(const MoeOptions& options, const MoeBackends& backends) {
  CheckPair(options, backends);
  CheckPair(ForDraftModel(options), backends);
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
  CheckOptions(options, shape, mesh);
  const bool shared = options.waterfill && shape.has_shared;
  const ExpertMap experts(shape.num_experts + options.num_redundant_experts, mesh.ep, shared);
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
                             ThreadPool& pool, std::shared_ptr<const MoeBackends> backends)
    : MoeBackend(options, shape, comm.mesh),
      exchange_(ExchangeShapeOf(options, shape, comm.mesh.shape())),
      comm_(comm),
      groups_(Groups(comm)),
      pool_(pool),
      experts_(shape.num_experts + options.num_redundant_experts, comm.mesh.ep(),
               options.waterfill && shape.has_shared) {
  CHECK(shape.hidden > 0 && shape.num_experts > 0 && shape.top_k > 0 && shape.max_tokens > 0);
  const DispatcherContext context{options_, exchange_, experts_, comm_, pool_};
  CheckNames(options, *backends);
  if (const FusedBackend* fused = backends->fused.FindIf(options.a2a_backend)) {
    fused_ = fused->make(context);
    runner_name_ = options.a2a_backend;
    return;
  }
  runner_ = MakeRunner(options, *backends, /*logs_mapping=*/comm.mesh.rank() == 0);
  runner_name_ = ResolveRunner(options.runner_backend, *backends);
  dispatcher_ = backends->dispatchers.Find(options.a2a_backend).make(context);
  permutes_ = FindPermutes(options, *dispatcher_, *runner_, backends->permutes);
}

PermuteContext CpuMoeBackend::permute_context() const {
  return {shape_.hidden, experts_.LocalExperts(mesh_.ep_rank()), pool_,
          runner_->expert_alignment()};
}

bool CpuMoeBackend::Supports(WeightFormat format) const {
  return fused_ ? fused_->Supports(format) : runner_->Supports(format);
}

void CpuMoeBackend::Observe(RoutingObserver* observer) {
  if (observer && observer->needs_dispatch() && fused_)
    throw Invalid(
        "--expert-distribution-recorder-mode stat_approx counts dispatched rows, which "
        "--moe-a2a-backend {} does not expose: want stat",
        options_.a2a_backend);
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
                                         OrBuiltin(std::move(backends)));
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
  CheckNames(options, all);
  if (const FusedBackend* fused = all.fused.FindIf(options.a2a_backend))
    return fused->symmetric_bytes(options, exchange);
  return all.dispatchers.Find(options.a2a_backend).symmetric_bytes(options, exchange);
}

}  // namespace switchyard
