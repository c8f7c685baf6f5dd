// Ranges of values. Flags have the same ranges, but a program may set EngineConfig itself.
#include <cstdint>
#include <limits>

#include "comm/device/symmetric_memory.h"
#include "core/dtype.h"
#include "core/error.h"
#include "engine/checks/checks.h"
#include "engine/dp_controller.h"
#include "engine/pipeline/layer_partition.h"
#include "engine/rank_engine.h"
#include "eplb/manager_options.h"
#include "eplb/recorder_options.h"
#include "kernels/cache_rows.h"
#include "moe/rows.h"

namespace switchyard {
namespace {

constexpr int32_t kLargestPage = 1024;
constexpr int64_t kMaxBatchTokens = 1 << 20;

void CheckDevice(const EngineConfig& c) {
  if (c.device != "auto" && c.device != "cpu" && c.device != "cuda" && !c.host_experts())
    throw Invalid("--device {}: want auto, cpu, cuda or cuda,cpu", c.device);
  if (c.host_experts() && c.mesh.expert_ranks == 0)
    throw Invalid(
        "--device {}: ranks with experts only compute on CPUs: want --expert-ranks, their number",
        c.device);
  if (c.base_gpu_id < 0 || c.gpu_id_step < 0)
    throw Invalid("--base-gpu-id {} and --gpu-id-step {}: want 0 or more", c.base_gpu_id,
                  c.gpu_id_step);
  if (!(c.mem_fraction_static > 0.0 && c.mem_fraction_static <= 1.0))
    throw Invalid("--mem-fraction-static {}: want more than 0 and at most 1",
                  c.mem_fraction_static);
  if (c.threads_per_rank < 0)
    throw Invalid("--cpu-threads-per-rank {}: want at least 1, or 0 for cores / ranks",
                  c.threads_per_rank);
}

void CheckPrecision(const EngineConfig& c) {
  const auto is_any = [](const std::string& name, auto accepts) {
    if (name == "auto") return true;
    const auto dtype = ParseDType(name);
    return dtype && accepts(*dtype);
  };
  if (!is_any(c.dtype, IsRowDType))
    throw Invalid("--dtype {}: want auto, float32, bfloat16 or float16", c.dtype);
  if (!is_any(c.kv_cache_dtype, kernels::IsCacheType))
    throw Invalid("--kv-cache-dtype {}: want auto, float32, bfloat16, float16, fp8_e4m3 or int8",
                  c.kv_cache_dtype);
}

void CheckCache(const EngineConfig& c) {
  if (c.page_size < 1 || c.page_size > kLargestPage)
    throw Invalid("--page-size {}: want 1 to {}", c.page_size, kLargestPage);
  if (c.max_total_tokens < 0)
    throw Invalid("--max-total-tokens {}: want at least 1, or 0 to fill memory",
                  c.max_total_tokens);
  const int64_t most_pages = std::numeric_limits<int32_t>::max() / c.page_size;
  if (c.max_total_tokens > most_pages * c.page_size)
    throw Invalid("--max-total-tokens {}: want at most {}", c.max_total_tokens,
                  most_pages * c.page_size);
}

void CheckScheduler(const EngineConfig& c) {
  if (c.chunked_prefill_size < -1 || c.chunked_prefill_size > kMaxBatchTokens)
    throw Invalid("--chunked-prefill-size {}: want 1 to {}, -1 for no chunking, or 0 for a default",
                  c.chunked_prefill_size, kMaxBatchTokens);
  if (c.max_prefill_tokens < 0 || c.max_prefill_tokens > kMaxBatchTokens)
    throw Invalid("--max-prefill-tokens {}: want 1 to {}, or 0 for no bound", c.max_prefill_tokens,
                  kMaxBatchTokens);
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
}

void CheckStages(const EngineConfig& c) {
  constexpr int32_t kMostAhead = 16;
  if (c.pp_async_batch_depth < 0 || c.pp_async_batch_depth > kMostAhead)
    throw Invalid("--pp-async-batch-depth {}: want 0 to {}", c.pp_async_batch_depth, kMostAhead);
  if (c.pp_max_micro_batch_size < 0)
    throw Invalid("--pp-max-micro-batch-size {}: want at least 1, or 0 for an equal part",
                  c.pp_max_micro_batch_size);
  ParseLayerPartition(c.pp_layer_partition);
}

void CheckTimeLimits(const EngineConfig& c) {
  if (!(c.dist_timeout_seconds > 0.0))
    throw Invalid("--dist-timeout {}: want more than 0 seconds", c.dist_timeout_seconds);
  if (!(c.watchdog_timeout_seconds >= 3.0))  // an idle leader sends a heartbeat once a second
    throw Invalid("--watchdog-timeout {}: want at least 3 seconds", c.watchdog_timeout_seconds);
}

}  // namespace

void CheckFlagValues(const EngineConfig& c) {
  [[maybe_unused]] const Mesh mesh(c.mesh, 0);  // throws if the sizes do not divide each other
  ParseLoadBalanceMethod(c.load_balance_method, !c.disable_radix_cache);
  if (c.elastic_ep_backend != "none" && c.elastic_ep_backend != "mooncake")
    throw Invalid("--elastic-ep-backend {}: want none or mooncake", c.elastic_ep_backend);
  if (c.spare_ranks < 0 || c.spare_ranks > SharedArena::kMaxSpares / 2)
    throw Invalid("--spare-ranks {}: want 0 to {}", c.spare_ranks, SharedArena::kMaxSpares / 2);
  Validate(c.eplb);
  Validate(c.recorder);
  CheckDevice(c);
  CheckPrecision(c);
  CheckCache(c);
  CheckScheduler(c);
  CheckStages(c);
  CheckTimeLimits(c);
  LimitsOf(c.speculative);
}

}  // namespace switchyard
