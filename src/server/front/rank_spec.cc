#include "server/front/rank_spec.h"

#include "core/wire.h"

namespace switchyard {

std::string EncodeRankSpec(const EngineConfig& config, const EnginePlan& plan) {
  WireWriter w;
  w.Put(EncodeConfig(config));
  w.Put(plan.dtype);
  w.Put(plan.kv_dtype);
  w.Put(plan.context_length);
  w.Put(plan.num_pages);
  w.Put(plan.max_running_requests);
  w.Put(plan.max_batch_tokens);
  w.Put(plan.threads_per_rank);
  w.Put(plan.weight_bytes_per_rank);
  w.Put(plan.kv_bytes_per_rank);
  w.Put(plan.symmetric_bytes_per_rank);
  return w.Take();
}

RankJob DecodeRankSpec(std::string_view bytes) {
  WireReader r(bytes);
  RankJob job;
  job.config = DecodeConfig(r.GetString());
  job.plan.dtype = r.Get<DType>();
  job.plan.kv_dtype = r.Get<DType>();
  job.plan.context_length = r.Get<int64_t>();
  job.plan.num_pages = r.Get<int64_t>();
  job.plan.max_running_requests = r.Get<int32_t>();
  job.plan.max_batch_tokens = r.Get<int64_t>();
  job.plan.threads_per_rank = r.Get<int32_t>();
  job.plan.weight_bytes_per_rank = r.Get<size_t>();
  job.plan.kv_bytes_per_rank = r.Get<size_t>();
  job.plan.symmetric_bytes_per_rank = r.Get<size_t>();
  job.plan.model = LoadModelConfig(job.config.model_path, job.config.model_override_args);
  return job;
}

}  // namespace switchyard
