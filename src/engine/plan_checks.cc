#include "engine/plan_checks.h"

#include "core/error.h"
#include "core/gguf_files.h"
#include "engine/dp_controller.h"
#include "engine/expert_services.h"
#include "engine/pipeline/check.h"
#include "engine/rank_engine.h"
#include "engine/speculative/draft_model.h"
#include "eplb/manager.h"
#include "eplb/types.h"

namespace switchyard {
namespace {

constexpr int32_t kLargestPage = 1024;
constexpr int64_t kMaxBatchTokens = 1 << 20;

}  // namespace

void CheckFlags(const EngineConfig& c) {
  Mesh(c.mesh, 0);  // throws if the sizes do not divide each other
  ParseLoadBalanceMethod(c.load_balance_method);
  if (c.elastic_ep_backend != "none" && c.elastic_ep_backend != "mooncake")
    throw Invalid("--elastic-ep-backend {}: want none or mooncake", c.elastic_ep_backend);
  Validate(c.eplb);
  Validate(c.recorder);
  if (c.page_size < 1 || c.page_size > kLargestPage)
    throw Invalid("--page-size {}: want 1 to {}", c.page_size, kLargestPage);
  if (c.chunked_prefill_size < -1 || c.chunked_prefill_size > kMaxBatchTokens)
    throw Invalid("--chunked-prefill-size {}: want 1 to {}, -1 for no chunking, or 0 for a default",
                  c.chunked_prefill_size, kMaxBatchTokens);
  if (c.max_prefill_tokens < 0 || c.max_prefill_tokens > kMaxBatchTokens)
    throw Invalid("--max-prefill-tokens {}: want 1 to {}, or 0 for no bound", c.max_prefill_tokens,
                  kMaxBatchTokens);
  CheckPipelineFlags(c);
  ParseSchedulePolicy(c.schedule_policy);
  if (!(c.schedule_conservativeness >= 0.0 && c.schedule_conservativeness <= 1e3))
    throw Invalid("--schedule-conservativeness {}: want 0 to 1000", c.schedule_conservativeness);
  if (c.target_step_ms != -1 && !(c.target_step_ms >= 0 && c.target_step_ms <= 1e6))
    throw Invalid("--target-step-ms {}: want 0 to 1000000, or -1 to derive it", c.target_step_ms);
  if (c.preemption_threshold < 0)
    throw Invalid("--priority-scheduling-preemption-threshold {}: want at least 0",
                  c.preemption_threshold);
  if (c.decode_log_interval < 0)
    throw Invalid("--decode-log-interval {}: want at least 0", c.decode_log_interval);
  if (c.max_running_requests < 0 || c.max_running_requests > kMaxBatchTokens)
    throw Invalid("--max-running-requests {}: want 1 to {}, or 0 for a default",
                  c.max_running_requests, kMaxBatchTokens);
  if (c.max_total_tokens < 0)
    throw Invalid("--max-total-tokens {}: want at least 1, or 0 to fill memory",
                  c.max_total_tokens);
  if (!(c.mem_fraction_static > 0.0 && c.mem_fraction_static <= 1.0))
    throw Invalid("--mem-fraction-static {}: want more than 0 and at most 1",
                  c.mem_fraction_static);
  if (c.threads_per_rank < 0)
    throw Invalid("--cpu-threads-per-rank {}: want at least 1, or 0 for cores / ranks",
                  c.threads_per_rank);
  if (!(c.dist_timeout_seconds > 0.0))
    throw Invalid("--dist-timeout {}: want more than 0 seconds", c.dist_timeout_seconds);
  if (!(c.watchdog_timeout_seconds >= 3.0))  // an idle leader sends a heartbeat once a second
    throw Invalid("--watchdog-timeout {}: want at least 3 seconds", c.watchdog_timeout_seconds);
}

void CheckRecorder(const ExpertRecorderOptions& recorder, const EnginePlan& plan) {
  if (!recorder.any()) return;
  const char* flag = recorder.mode.empty() ? "--enable-expert-distribution-metrics"
                                           : "--expert-distribution-recorder-mode";
  if (!plan.model.has_moe()) throw Invalid("{}: this model has no experts; leave it out", flag);
}

void CheckEplb(const EngineConfig& config, const EnginePlan& plan) {
  const EplbOptions& eplb = config.eplb;
  if (!eplb.enable && eplb.dispatch == "static") return;
  const char* flag = eplb.enable ? "--enable-eplb" : "--ep-dispatch-algorithm";
  if (!plan.model.has_moe()) throw Invalid("{}: this model has no experts; leave it out", flag);
  if (!eplb.enable) return;
  if (config.mesh.ep == 1)
    throw Invalid("--enable-eplb: all experts are on one EP rank; want --ep-size 2 or more");
  try {
    EplbManager::Check(eplb, EplbShapeOf(config, plan), config.mesh.ep);
  } catch (const Error& error) {
    throw Invalid("--enable-eplb, --eplb-algorithm {}: {}", eplb.algorithm, error.what());
  }
}

void CheckRunnerFormat(const EngineConfig& config, const ModelConfig& model) {
  if (config.moe.runner_backend != "flashinfer_mxfp4" || !model.has_moe()) return;
  if (model.quantization.method == "mxfp4") return;
  throw Invalid(
      "--moe-runner-backend flashinfer_mxfp4 computes MXFP4 experts, and this checkpoint's are {}: "
      "add --quantization mxfp4, or leave the flag out",
      model.quantization.method.empty() ? std::string(Name(model.dtype))
                                        : model.quantization.method);
}

void CheckGgufDevice(const EngineConfig& config, const EnginePlan& plan) {
  if (!plan.cuda) return;
  for (const std::filesystem::path& path : {config.model_path, DraftPath(config)}) {
    if (FindGguf(path))
      throw Invalid(
          "--device cuda: {} is a GGUF model, which runs on CPUs only; want --device cpu, or a "
          "safetensors checkpoint",
          path.string());
  }
}

}  // namespace switchyard
