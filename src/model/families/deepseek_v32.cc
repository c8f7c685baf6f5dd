// DeepSeek-V3.2: DeepSeek-V3 with an indexer in each layer, which selects the keys that a query
// attends to (DeepSeek Sparse Attention). GLM-5: the same with other defaults; some layers attend
// to the keys that an earlier layer has selected.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

struct Defaults {
  double norm_eps;
  bool index_interleaved;
  NoAuxDefaults router;
};

void RefuseType(const ConfigReader& reader, std::string_view key, const std::string& type,
                std::string_view wanted) {
  throw Invalid("{} holds \"{}\"; want {}", reader.Where(key), type, wanted);
}

void CheckCount(const ConfigReader& reader, std::string_view key, size_t count,
                const ModelConfig& config) {
  if (std::cmp_not_equal(count, config.num_layers()))
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(key), count,
                  config.num_layers());
}

// The layers without an indexer, as transformers derives them: from indexer_types; else from
// index_topk_pattern, a string or a list; else, with f = index_topk_freq, an indexer is in the
// layers up to index_skip_topk_offset − 1, and then in each f-th one.
void ReadSharedIndices(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::string_view kTypes = "indexer_types", kPattern = "index_topk_pattern";
  const std::string_view key = reader.Has(kTypes) ? kTypes : kPattern;
  std::vector<std::string> types;
  if (key == kPattern && reader.IsString(kPattern)) {
    for (const char c : reader.StringOr({kPattern}, ""))
      types.emplace_back(c == 'F' ? "full" : c == 'S' ? "shared" : std::string(1, c));
  } else {
    types = reader.Strings(key);
  }
  const int64_t every = reader.IntOr({"index_topk_freq"}, 1, 0, kMaxCount);
  const int64_t offset = reader.IntOr({"index_skip_topk_offset"}, 2, 0, kMaxCount);
  reader.Ignore({kPattern});
  if (!types.empty()) CheckCount(reader, key, types.size(), *config);
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    const int64_t after = std::max<int64_t>(i - offset + 1, 0);
    const bool shared =
        types.empty() ? after % std::max<int64_t>(every, 1) != 0 : types[i] == "shared";
    if (!types.empty() && !shared && types[i] != "full")
      RefuseType(reader, key, types[i], "full or shared");
    if (shared && i == 0)
      throw Invalid("{}: layer 0 has no indexer, and there is no layer before it that has one",
                    reader.Where(types.empty() ? "index_skip_topk_offset" : key));
    config->layers[i].shared_index = shared;
  }
}

// The sizes have no defaults: a config.json that gives them under other names is refused.
void ReadIndex(const ConfigReader& reader, bool interleaved, ModelConfig* config) {
  AttentionConfig& a = config->attention;
  if (a.q_lora_rank == 0)
    throw Invalid("{} is absent; want at least 1, because the indexer reads its rows",
                  reader.Where("q_lora_rank"));
  a.index_topk = reader.Int({"index_topk"}, 1, kMaxWidth);
  a.index_heads = reader.Int({"index_n_heads"}, 1, kMaxCount);
  a.index_head_dim = reader.Int({"index_head_dim"}, 1, kMaxWidth);
  if (a.index_head_dim < a.qk_rope_head_dim)
    throw Invalid("{} is {}, less than qk_rope_head_dim {}", reader.Where("index_head_dim"),
                  a.index_head_dim, a.qk_rope_head_dim);
  a.index_interleaved = reader.BoolOr("indexer_rope_interleave", interleaved);
  a.drafts_share_index = reader.BoolOr("index_share_for_mtp_iteration", false);
  constexpr std::string_view kLayers = "layer_types";
  const auto types = reader.Strings(kLayers);
  if (!types.empty()) CheckCount(reader, kLayers, types.size(), *config);
  for (const std::string& type : types)  // both names mean the same, by version of transformers
    if (type != "indexed_attention" && type != "deepseek_sparse_attention")
      RefuseType(reader, kLayers, type, "indexed_attention or deepseek_sparse_attention");
}

void Read(const ConfigReader& reader, const Defaults& defaults, ModelConfig* config) {
  ReadCommon(reader, defaults.norm_eps, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadRope(reader, 10000.0, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = true;
  RequireTrue(reader, "rope_interleave");
  ScaleLatentScores(config);
  ReadIndex(reader, defaults.index_interleaved, config);
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, 3, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, defaults.router, &config->moe->router);
  ReadSharedExperts(reader, {"n_shared_experts"}, 1, config);
}

void ReadDeepseek(const ConfigReader& reader, ModelConfig* config) {
  Read(reader,
       {.norm_eps = 1e-6,
        .index_interleaved = false,
        .router = {.scale = 2.5, .groups = 8, .topk_groups = 4}},
       config);
}

void ReadGlm(const ConfigReader& reader, ModelConfig* config) {
  Read(reader, {.norm_eps = 1e-5, .index_interleaved = true, .router = {.scale = 2.5}}, config);
  ReadSharedIndices(reader, config);
}

constexpr Family kFamilies[] = {
    {.architecture = "DeepseekV32ForCausalLM",
     .model_type = "deepseek_v32",
     .read_config = ReadDeepseek,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "deepseekv32",
     .reasoning_parser = "deepseek-v3"},
    {.architecture = "GlmMoeDsaForCausalLM",
     .model_type = "glm_moe_dsa",
     .read_config = ReadGlm,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "glm45",
     .reasoning_parser = "glm45"},
};

}  // namespace

std::span<const Family> DeepseekV32Family() { return kFamilies; }

}  // namespace switchyard
