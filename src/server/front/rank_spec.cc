#include "server/front/rank_spec.h"

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "core/hash.h"
#include "core/wire.h"
#include "engine/speculative/draft_model.h"
#include "engine/speculative/token_map.h"
#include "model/gguf/gguf_config.h"

namespace switchyard {
namespace {

std::string HashOfFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "none";
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return fmt::format("{:016x}", HashOf(text));
}

// Hash of a GGUF model's configuration.
std::string HashOfGguf(const std::filesystem::path& path) {
  const auto gguf = FindGguf(path);
  if (!gguf) return "none";
  return fmt::format("{:016x}", HashOf(ReadGgufConfig(GgufFiles(*gguf)).config));
}

// Hash of the file `location`, or of `location` itself if it is JSON text.
std::string HashOfLocation(const std::string& location) {
  if (location.find('{') == std::string::npos) return HashOfFile(location);
  return fmt::format("{:016x}", HashOf(location));
}

// 0: the draft model's head has all tokens.
uint64_t HashOfTokenMap(const EnginePlan& plan) {
  const bool reduced = plan.draft && plan.draft->reduced_head;
  return reduced ? HashOfTokens(plan.draft->reduced_head->tokens) : 0;
}

}  // namespace

std::string EncodeRankSpec(const EngineConfig& config, const EnginePlan& plan) {
  WireWriter w;
  w.Put(EncodeConfig(config));
  w.Put(plan.cuda);
  w.Put(plan.packs_experts);
  w.Put(plan.host_int8_rows);
  w.Put(plan.host_bfloat16_rows);
  w.Put(plan.ranks_of_host);
  w.Put(plan.dtype);
  w.Put(plan.kv_dtype);
  w.Put(plan.context_length);
  w.Put(plan.num_pages);
  w.Put(plan.max_running_requests);
  w.Put(plan.num_states);
  w.Put(plan.chunked_prefill_size);
  w.Put(plan.max_batch_tokens);
  w.Put(plan.max_forced);
  w.Put(plan.threads_per_rank);
  w.Put(plan.weight_bytes_per_rank);
  w.Put(plan.kv_bytes_per_rank);
  w.Put(plan.symmetric_bytes_per_rank);
  w.Put(plan.model.quantization.bfloat16_rows);
  w.Put(plan.model.quantization.int8_group_rows);
  w.Put(plan.model.quantization.fp8_bfloat16_rows);
  w.Put(HashOfTokenMap(plan));
  return w.Take();
}

RankJob DecodeRankSpec(std::string_view bytes, const std::filesystem::path& model_path,
                       const std::filesystem::path& draft_path,
                       const std::optional<std::string>& token_map) {
  WireReader r(bytes);
  RankJob job;
  job.config = DecodeConfig(r.GetString());
  job.plan.cuda = r.Get<bool>();
  job.plan.packs_experts = r.Get<bool>();
  job.plan.host_int8_rows = r.Get<bool>();
  job.plan.host_bfloat16_rows = r.Get<bool>();
  job.plan.host_experts = job.plan.cuda && job.config.host_experts();
  job.plan.ranks_of_host = r.Get<int32_t>();
  job.plan.dtype = r.Get<DType>();
  job.plan.kv_dtype = r.Get<DType>();
  job.plan.context_length = r.Get<int64_t>();
  job.plan.num_pages = r.Get<int64_t>();
  job.plan.max_running_requests = r.Get<int32_t>();
  job.plan.num_states = r.Get<int64_t>();
  job.plan.chunked_prefill_size = r.Get<int32_t>();
  job.plan.max_batch_tokens = r.Get<int64_t>();
  job.plan.max_forced = r.Get<int32_t>();
  job.plan.threads_per_rank = r.Get<int32_t>();
  job.plan.weight_bytes_per_rank = r.Get<size_t>();
  job.plan.kv_bytes_per_rank = r.Get<size_t>();
  job.plan.symmetric_bytes_per_rank = r.Get<size_t>();
  const bool bfloat16_rows = r.Get<bool>();
  const bool int8_group_rows = r.Get<bool>();
  const bool fp8_bfloat16_rows = r.Get<bool>();
  const auto tokens = r.Get<uint64_t>();
  if (!model_path.empty()) job.config.model_path = model_path;
  if (!draft_path.empty()) job.config.speculative.draft_model_path = draft_path.string();
  std::string& map = job.config.speculative.token_map;
  if (token_map) map = *token_map;
  job.plan.model = ReadModelConfig(job.config);
  // All ranks use the leader's values. A rank with another CPU type would otherwise round rows
  // differently, which changes sums.
  job.plan.model.quantization.bfloat16_rows = bfloat16_rows;
  job.plan.model.quantization.int8_group_rows = int8_group_rows;
  job.plan.model.quantization.fp8_bfloat16_rows = fp8_bfloat16_rows;
  job.plan.stages = StagesOf(job.config, job.plan.model);
  job.plan.draft = ReadDraftConfig(job.config, job.plan.model, job.plan.cuda);
  if (!map.empty() && HashOfTokenMap(job.plan) != tokens)
    throw Invalid(
        "--speculative-token-map {}: the tokens differ from those that the server started with; "
        "want the same file on all nodes, unchanged while the server runs",
        map);
  job.plan.drafts = DraftLimitsOf(job.config, job.plan.draft);
  return job;
}

Statement EngineStatement(const EngineConfig& config) {
  return {
      {"--tp-size", std::to_string(config.mesh.tp)},
      {"--ep-size", std::to_string(config.mesh.ep)},
      {"--dp-size", std::to_string(config.mesh.dp)},
      {"--moe-dense-tp-size", std::to_string(config.mesh.dense_tp)},
      {"--pp-size", std::to_string(config.mesh.pp)},
      {"--expert-ranks", std::to_string(config.mesh.expert_ranks)},
      {"--expert-slots", Joined(config.mesh.expert_slots, ",")},
      {"--eplb-rank-costs", config.eplb.rank_costs},
      {"--stream-experts", config.moe.stream_experts},
      {"--moe-a2a-backend", config.moe.a2a_backend},
      {"--moe-runner-backend", config.moe.runner_backend},
      {"--speculative-algorithm", config.speculative.algorithm},
      {"the hash of --speculative-token-map", HashOfFile(config.speculative.token_map)},
      {"--speculative-moe-a2a-backend", config.moe.speculative_a2a_backend},
      {"--speculative-moe-runner-backend", config.moe.speculative_runner_backend},
      {"the hash of the draft model's config.json", HashOfFile(DraftPath(config) / "config.json")},
      {"--load-format", config.load_format},
      {"--quantization", config.quantization.method},
      {"the hash of --quantization-config", HashOfLocation(config.quantization.rules)},
      {"--json-model-override-args", config.model_override_args},
      {"--ep-num-redundant-experts", std::to_string(config.moe.num_redundant_experts)},
      {"the hash of --init-expert-location", HashOfLocation(config.moe.init_expert_location)},
      {"the hash of config.json", HashOfFile(config.model_path / "config.json")},
      {"the hash of the GGUF file's metadata", HashOfGguf(config.model_path)},
      {"the hash of modules.json", HashOfFile(config.model_path / "modules.json")},
      {"the hash of hf_quant_config.json", HashOfFile(config.model_path / "hf_quant_config.json")}};
}

}  // namespace switchyard
