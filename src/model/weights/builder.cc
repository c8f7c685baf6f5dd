#include <fmt/format.h>

#include <cmath>

#include "core/check.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

LayerWeights BuildLayer(Parts& parts, int64_t index) {
  const ModelConfig& config = parts.config();
  const TensorNames& names = parts.names();
  const Mesh& mesh = parts.mesh();
  const std::string prefix = fmt::format("{}{}.", names.layers, index);
  LayerWeights layer;
  layer.input_norm =
      parts.Norm(prefix + names.input_norm + ".weight", config.hidden, "hidden_size");
  layer.post_attention_norm =
      parts.Norm(prefix + names.post_attention_norm + ".weight", config.hidden, "hidden_size");
  if (config.attention.kind == AttentionConfig::Kind::kGrouped) {
    layer.grouped = BuildGroupedAttention(parts, prefix);
  } else {
    layer.latent = BuildLatentAttention(parts, prefix);
  }
  if (config.layers[index].moe) {
    layer.moe = BuildMoe(parts, prefix, &layer.owned);
  } else {
    const std::string mlp = prefix + names.mlp;
    layer.dense = parts.FeedForward(
        mlp + ".gate_proj", mlp + ".up_proj", mlp + ".down_proj", config.intermediate,
        EvenPart(config.intermediate, mesh.tp(), mesh.tp_rank()), "hidden_size, intermediate_size");
  }
  return layer;
}

}  // namespace

ModelWeights BuildWeights(const ModelConfig& config, const Mesh& mesh, bool whole_shared_expert,
                          WeightSource& source) {
  const Family* family = FindFamily(config.architecture);
  CHECK(family != nullptr);
  CheckSplits(config, mesh, whole_shared_expert);
  const TensorNames names = family->names(config);
  Parts parts({config, mesh, names, whole_shared_expert}, source);

  const Range vocab = VocabRows(config.vocab_size, mesh.tp(), mesh.tp_rank());
  const auto vocabulary = [&](const std::string& name) {
    return parts.Plain(name, config.vocab_size, vocab, "vocab_size, hidden_size");
  };
  ModelWeights w;
  w.vocab_begin = vocab.begin;
  w.vocab_end = vocab.end;
  w.embedding = vocabulary(names.embedding);
  w.layers.reserve(config.layers.size());
  for (int64_t i = 0; i < config.num_layers(); ++i) w.layers.push_back(BuildLayer(parts, i));
  w.final_norm = parts.Norm(names.final_norm, config.hidden, "hidden_size");
  w.head = config.tie_embeddings ? w.embedding : vocabulary(names.head);
  w.bytes_mapped = static_cast<size_t>(std::llround(parts.bytes()));
  return w;
}

}  // namespace switchyard
