#include "moe/check_options.h"

#include "core/error.h"
#include "moe/rows.h"
#include "moe/runners/runner_names.h"

namespace switchyard {
namespace {

void CheckWaterfill(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  if (!options.waterfill) return;
  if (shape.has_shared && mesh.ep != mesh.tp)
    throw Invalid(
        "--enable-deepep-waterfill needs whole shared experts on each rank: want --ep {} (equal to "
        "--tp), not {}",
        mesh.tp, mesh.ep);
  if (shape.has_shared && shape.scales_input)
    throw Invalid(
        "--enable-deepep-waterfill: this model scales the input rows of routed experts but not of "
        "the shared expert, so the two cannot share a dispatched row; leave the flag out");
  if (!ScattersTokens(options, mesh))
    throw Invalid("--enable-deepep-waterfill: --moe-a2a-backend none sends no rows; want deepep");
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

}  // namespace

void CheckMoeValues(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
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
  const std::string& mode = options.deepep_mode;
  if (mode != "auto" && mode != "normal" && mode != "low_latency")
    throw Invalid("--deepep-mode {}: want normal, low_latency or auto", mode);
  if (options.combine_rows != "slot" && options.combine_rows != "rank")
    throw Invalid("--moe-combine-rows {}: want slot or rank", options.combine_rows);
  if (options.num_redundant_experts < 0)
    throw Invalid("--ep-num-redundant-experts {}: want at least 0", options.num_redundant_experts);
  CheckWaterfill(options, shape, mesh);
}

void CheckMoeBackends(const MoeOptions& options, const MoeBackends& backends) {
  CheckPair(options, backends);
  CheckPair(ForDraftModel(options), backends);
}

}  // namespace switchyard
