// Serialization of EngineConfig: its fields, listed once, without `backends`.
#include "engine/config.h"
#include "engine/wire_fields.h"

namespace switchyard {

constexpr DType LastOf(DType) { return DType::kBool; }

template <typename Codec, OneOf<MeshShape> T>
void Fields(Codec& codec, T& m) {
  codec(m.tp, m.ep, m.dp, m.dense_tp, m.pp, m.expert_ranks, m.expert_slots);
}
template <typename Codec, OneOf<MoeOptions> T>
void Fields(Codec& codec, T& o) {
  codec(o.a2a_backend, o.deepep_mode, o.runner_backend, o.speculative_a2a_backend,
        o.speculative_runner_backend, o.max_dispatch_tokens_per_rank, o.dispatcher_output_dtype,
        o.combine_rows, o.long_seq_per_round_tokens, o.long_seq_rounds, o.hccl_buffer_mib,
        o.combine_long_seq, o.elastic_timeout_seconds, o.waterfill, o.single_batch_overlap,
        o.num_redundant_experts, o.init_expert_location, o.stream_experts, o.row_dtype,
        o.fp8_group_activations);
}
template <typename Codec, OneOf<QuantizationFlags> T>
void Fields(Codec& codec, T& q) {
  codec(q.method, q.rules, q.activations, q.layout);
}
template <typename Codec, OneOf<PoolingFlags> T>
void Fields(Codec& codec, T& p) {
  codec(p.is_embedding, p.pooler_config);
}
template <typename Codec, OneOf<ExpertRecorderOptions> T>
void Fields(Codec& codec, T& r) {
  codec(r.mode, r.buffer_size, r.dir, r.metrics);
}
template <typename Codec, OneOf<EplbOptions> T>
void Fields(Codec& codec, T& e) {
  codec(e.enable, e.algorithm, e.num_iterations, e.layers_per_chunk, e.min_utilization, e.dispatch,
        e.rank_costs, e.watchdog_seconds);
}
template <typename Codec, OneOf<SpeculativeOptions> T>
void Fields(Codec& codec, T& o) {
  codec(o.algorithm, o.num_steps, o.eagle_topk, o.num_draft_tokens, o.draft_model_path,
        o.draft_quantization, o.token_map, o.simulate_acceptance);
}
template <typename Codec, OneOf<EngineConfig> T>
void Fields(Codec& codec, T& c) {
  codec(c.model_path, c.model_override_args, c.device, c.base_gpu_id, c.gpu_id_step,
        c.disable_custom_all_reduce, c.disable_cuda_graph, c.cuda_graph_max_bs, c.dtype,
        c.kv_cache_dtype, c.quantization, c.pooling, c.load_format, c.mesh, c.elastic_ep_backend,
        c.spare_ranks, c.pp_layer_partition, c.pp_max_micro_batch_size, c.pp_async_batch_depth,
        c.dynamic_chunking, c.load_balance_method, c.moe, c.speculative, c.disable_jump_forward,
        c.disable_overlap_schedule, c.two_batch_overlap, c.tbo_threshold, c.tbo_min_tokens, c.eplb,
        c.recorder, c.context_length, c.max_total_tokens, c.mem_fraction_static, c.page_size,
        c.max_running_requests, c.max_queued_requests, c.chunked_prefill_size, c.max_prefill_tokens,
        c.schedule_policy, c.schedule_conservativeness, c.target_step_ms, c.priority_scheduling,
        c.preemption_threshold, c.decode_log_interval, c.disable_radix_cache, c.threads_per_rank,
        c.cpu_bind, c.cpu_isa, c.dist_timeout_seconds, c.watchdog_timeout_seconds, c.random_seed,
        c.disaggregation_mode, c.log_level, c.check_batches);
}

std::string EncodeConfig(const EngineConfig& config) { return EncodeFields(config); }
EngineConfig DecodeConfig(std::string_view bytes) { return DecodeFields<EngineConfig>(bytes); }

}  // namespace switchyard
