// ERNIE-4.5: a softmax router with a correction bias that affects only the selection; weights are
// renormalised. Rotary pairs are interleaved.
//
// The MTP layer is dense. As in FastDeploy (ernie4_5_mtp.py), it reads rows after the final norm,
// and the model's final norm follows it.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// Weights are divided by at least this. Below the limit it changes nothing but sums of weights that
// are nearly 0.
void CheckNormMin(const ConfigReader& reader) {
  constexpr double kMost = 1e-9;
  const double smallest = reader.DoubleOr({"moe_norm_min"}, 1e-12, 0.0, 1e6);
  if (smallest > kMost)
    throw Invalid("{} is {}; want at most {}", reader.Where("moe_norm_min"), smallest, kMost);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  config->tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  RequireFalse(reader, "use_bias");
  ReadRope(reader, 500000.0, config->attention.head_dim, config);
  config->rope.interleaved = true;
  const int64_t first = reader.IntOr({"moe_layer_start_index"}, 1, 0, kMaxCount);
  const int64_t last = reader.IntOr({"moe_layer_end_index"}, -1, -1, kMaxCount);
  const int64_t every = reader.IntOr({"moe_layer_interval"}, 1, 1, kMaxCount);
  for (int64_t i = first; i < config->num_layers() && (last < 0 || i <= last); ++i)
    config->layers[i].moe = (i + 1) % every == 0;
  config->mtp_block = {LayerConfig{}};
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  config->moe->router.renormalize = true;
  CheckNormMin(reader);
  ReadSharedExperts(reader, {"moe_num_shared_experts"}, 2, config);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.mtp = "model.mtp_";
  names.mtp_layers = "block.";
  names.mtp_embedding_norm = "emb_norm.0";
  names.mtp_hidden_norm = "hidden_norm.0";
  names.mtp_projection = "linear_proj.0";
  names.mtp_embedding.clear();
  names.mtp_final_norm.clear();
  names.correction_bias = true;
  names.correction_bias_name = "moe_statics.e_score_correction_bias";
  names.correction_bias_row = true;
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "Ernie4_5_MoeForCausalLM",
                                 .model_type = "ernie4_5_moe",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "qwen25",
                                 .reasoning_parser = "ernie45"}};

}  // namespace

std::span<const Family> Ernie45MoeFamily() { return kFamilies; }

}  // namespace switchyard
