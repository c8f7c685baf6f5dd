// Byte form of EngineConfig: its fields, listed once.
#include "engine/config.h"
#include "engine/wire_fields.h"

namespace switchyard {

constexpr DType LastOf(DType) { return DType::kBool; }

template <typename Codec, OneOf<MeshShape> T>
void Fields(Codec& codec, T& m) {
  codec(m.tp, m.ep);
}
template <typename Codec, OneOf<MoeOptions> T>
void Fields(Codec& codec, T& o) {
  codec(o.a2a_backend, o.deepep_mode, o.runner_backend, o.max_dispatch_tokens_per_rank,
        o.row_dtype);
}
template <typename Codec, OneOf<EngineConfig> T>
void Fields(Codec& codec, T& c) {
  codec(c.model_path, c.model_override_args, c.dtype, c.kv_cache_dtype, c.load_format, c.mesh,
        c.moe, c.context_length, c.max_total_tokens, c.mem_fraction_static, c.page_size,
        c.max_running_requests, c.max_queued_requests, c.chunked_prefill_size,
        c.disable_radix_cache, c.threads_per_rank, c.cpu_isa, c.dist_timeout_seconds, c.random_seed,
        c.log_level, c.check_batches);
}

std::string EncodeConfig(const EngineConfig& config) { return EncodeFields(config); }
EngineConfig DecodeConfig(std::string_view bytes) { return DecodeFields<EngineConfig>(bytes); }

}  // namespace switchyard
