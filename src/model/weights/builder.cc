#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

double BytesOf(const kernels::ExpertWeights& w, kernels::Activation activation) {
  const bool gated = activation != kernels::Activation::kRelu2;
  return (gated ? StoredBytes(w.gate) : 0) + StoredBytes(w.up) + StoredBytes(w.down);
}

// Next returns the bytes that `parts` has counted since the last call.
class Meter {
 public:
  explicit Meter(const Parts& parts) : parts_(parts), last_(parts.bytes()) {}
  double Next() { return parts_.bytes() - std::exchange(last_, parts_.bytes()); }

 private:
  const Parts& parts_;
  double last_;
};

// A norm over hidden elements: [H], or [2, H] with its bias for LayerNorm. `name`: name of the
// weight's tensor.
Tensor BuildNorm(Parts& parts, const std::string& name) {
  constexpr std::string_view kKeys = "hidden_size";
  constexpr std::string_view kWeight = "weight";
  const int64_t hidden = parts.config().hidden;
  if (!parts.config().layer_norm) return parts.Norm(name, hidden, kKeys);
  const auto width = static_cast<size_t>(hidden);
  Tensor both = Tensor::Empty(DType::kF32, {2, hidden});
  const std::string bias = name.substr(0, name.size() - kWeight.size()) + "bias";
  const Range all{0, hidden};
  parts.Vector({.name = name, .n = hidden, .range = all, .norm = true, .keys = kKeys},
               {both.data<float>(), width});
  parts.Vector({.name = bias, .n = hidden, .range = all, .keys = kKeys},
               {both.data<float>() + hidden, width});
  return both;
}

// The final norm, with the scale of the logits. Without a vocabulary head it has no such scale.
Tensor BuildFinalNorm(Parts& parts) {
  const ModelConfig& config = parts.config();
  Tensor norm = BuildNorm(parts, parts.names().final_norm);
  if (config.logit_scale != 1.0f && !config.pooling)
    for (int64_t i = 0; i < norm.num_elements(); ++i) norm.data<float>()[i] *= config.logit_scale;
  return norm;
}

// The prefix of the dense feed-forward in a layer.
std::string DensePrefix(const Parts& parts, int64_t index, const std::string& prefix) {
  const TensorNames& names = parts.names();
  if (parts.config().layers[index].dense_beside) return prefix + names.moe + "." + names.shared;
  const std::string mlp = prefix + names.mlp, other = prefix + names.mlp_alternative;
  const bool uses_other = !names.mlp_alternative.empty() && !parts.Has(mlp + ".down_proj.weight") &&
                          parts.Has(other + ".down_proj.weight");
  return uses_other ? other : mlp;
}

kernels::ExpertWeights BuildDense(Parts& parts, int64_t index, const std::string& prefix) {
  const Mesh& mesh = parts.mesh();
  const std::string mlp = DensePrefix(parts, index, prefix);
  const int64_t width = parts.config().dense_width(index);
  const Range part = mesh.replicated_dense()
                         ? Range{0, width}
                         : parts.EvenColumns(mlp + ".down_proj", width, mesh.tp(), mesh.tp_rank());
  return parts.FeedForward(mlp + ".gate_proj", mlp + ".up_proj", mlp + ".down_proj",
                           parts.config().hidden, width, part, "hidden_size, intermediate_size");
}

LayerWeights BuildLayer(Parts& parts, int64_t index, WeightBytes& bytes) {
  const ModelConfig& config = parts.config();
  const TensorNames& names = parts.names();
  const LayerConfig& kind = config.layers[index];
  const std::string prefix = LayerPrefix(parts, index);
  const bool stored_by_token = kind.by_token && !config.expert_skew;  // FinishRouters makes others
  LayerWeights layer;
  Meter meter(parts);
  if (!parts.mesh().attends()) {
    if (!kind.moe) return layer;
    layer.moe = BuildMoe(parts, prefix, parts.PlacementOf(index), stored_by_token, &layer.owned);
    bytes.experts += meter.Next();
    return layer;
  }
  const auto norm = [&](bool exists, const std::string& name) {
    return !exists || name.empty() ? Tensor() : BuildNorm(parts, prefix + name + ".weight");
  };
  layer.input_norm = norm(kind.mixer, names.input_norm);
  layer.post_attention_norm = norm(kind.feed_forward, names.post_attention_norm);
  layer.attention_output_norm = norm(kind.mixer, names.attention_output_norm);
  layer.feed_forward_output_norm = norm(kind.feed_forward, names.feed_forward_output_norm);
  bytes.norms += meter.Next();
  if (kind.linear) {
    layer.linear = BuildLinearAttention(parts, index, prefix);
  } else if (kind.mixer && config.attention.kind == AttentionConfig::Kind::kGrouped) {
    layer.grouped = BuildGroupedAttention(parts, index, prefix);
  } else if (kind.mixer && config.attention.kind == AttentionConfig::Kind::kCompressed) {
    layer.compressed = BuildCompressedAttention(parts, index, prefix);
  } else if (kind.mixer) {
    layer.latent = BuildLatentAttention(parts, prefix, config.has_indexer(index));
  }
  if (config.streams) {
    const int64_t logits = config.streams->logits();
    layer.attention_streams = BuildStreams(parts, prefix + names.attention_streams, logits);
    layer.feed_forward_streams = BuildStreams(parts, prefix + names.feed_forward_streams, logits);
  }
  bytes.attention += meter.Next();
  if (kind.moe) {
    layer.moe = BuildMoe(parts, prefix, parts.PlacementOf(index), stored_by_token, &layer.owned);
    const double router = StoredBytes(layer.moe.router.w);
    const double shared = layer.moe.has_shared ? BytesOf(layer.moe.shared, config.activation) +
                                                     StoredBytes(layer.moe.shared_gate)
                                               : 0;
    bytes.router += router;
    bytes.shared += shared;
    bytes.experts += meter.Next() - router - shared;
  }
  if (kind.moe && config.moe->latent > 0) {
    const int64_t latent = config.moe->latent, hidden = config.hidden;
    constexpr std::string_view kKeys = "hidden_size, moe_latent_size";
    layer.latent_in =
        parts.Rows(prefix + names.latent_in, latent, hidden, {0, latent}, false, kKeys);
    layer.latent_out =
        parts.Rows(prefix + names.latent_out, hidden, latent, {0, hidden}, false, kKeys);
    bytes.shared += meter.Next();
  }
  if (kind.dense()) {
    layer.dense = BuildDense(parts, index, prefix);
    bytes.dense += meter.Next();
  }
  return layer;
}

// An EAGLE head may use the target's embedding.
bool LoadsEmbedding(const ModelConfig& config) {
  return (config.has_embedding || config.lends_embedding) &&
         (!config.eagle || config.eagle->own_embedding);
}

// The rows of a reduced head, and of its bias.
void BuildReducedHead(Parts& parts, const ReducedHead& head, Range rows, ModelWeights* w) {
  const ModelConfig& config = parts.config();
  const std::string& name = config.tie_embeddings ? parts.names().embedding : parts.names().head;
  w->head = parts.ReducedHeadRows(name, head, rows);
  if (!config.head_bias) return;
  const std::string& head_name = parts.names().head;
  const std::string bias = head_name.substr(0, head_name.rfind('.')) + ".bias";
  std::vector<float> all(static_cast<size_t>(config.vocab_size));
  parts.source().Vector({.name = bias,
                         .n = config.vocab_size,
                         .range = {0, config.vocab_size},
                         .of_owner = head.owner != nullptr,
                         .keys = "vocab_size"},
                        all);
  w->head_bias = Tensor::Empty(DType::kF32, {rows.size()});
  for (int64_t i = 0; i < rows.size(); ++i)
    w->head_bias.data<float>()[i] = all[head.tokens[rows.begin + i]];
  parts.Count(static_cast<double>(w->head_bias.num_bytes()));
}

// The head of the vocabulary, or of a classifier. A tied head may be rows of w->embedding. An
// embedding model has none; an EAGLE head may use the target's.
void BuildHead(Parts& parts, ModelWeights* w) {
  const ModelConfig& config = parts.config();
  const TensorNames& names = parts.names();
  if (config.pooling) {
    if (const auto labels = static_cast<int64_t>(config.pooling->labels.size()))
      w->head = parts.Plain("score.weight", labels, {0, labels}, "num_labels, hidden_size");
    return;
  }
  const Range rows = HeadRows(config.head_rows(), parts.mesh());
  if (const ReducedHead* const head = config.reduced_head.get()) {
    if (!head->owner) return BuildReducedHead(parts, *head, rows, w);
    const TensorNames owner_names = NamesOf(*head->owner);
    Parts of_owner({*head->owner, parts.mesh(), owner_names}, parts.source());
    BuildReducedHead(of_owner, *head, rows, w);
    return parts.Count(of_owner.bytes());
  }
  if (config.eagle && !config.eagle->own_head) return;
  const bool same = LoadsEmbedding(config) && config.tie_embeddings &&
                    rows.begin == w->vocab_begin && rows.end == w->vocab_end;
  w->head = same ? w->embedding
                 : parts.Vocabulary(config.tie_embeddings ? names.embedding : names.head,
                                    config.head_rows(), rows);
  if (config.head_bias)
    w->head_bias = parts.Vector({.name = names.head.substr(0, names.head.rfind('.')) + ".bias",
                                 .n = config.vocab_size,
                                 .range = rows,
                                 .keys = "vocab_size"});
}

}  // namespace

ModelWeights BuildWeights(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options,
                          WeightSource& source, WeightBytes* by_module) {
  WeightBytes ignored;
  WeightBytes& bytes = by_module ? *by_module : ignored;
  CheckSplits(config, mesh, options.replicated_shared_expert);
  TensorNames names = NamesOf(config);
  Parts parts({config, mesh, names, options.replicated_shared_expert, options.placements}, source);

  const Range vocab = EmbeddingRows(config.vocab_size, mesh);
  Meter meter(parts);
  ModelWeights w;
  UseHiddenInputNames(parts, &names);
  if (config.takes_hidden()) w.hidden_input = BuildHiddenInput(parts);
  for (int64_t depth = 1; depth < config.mtp_depths; ++depth)
    w.later_depths.push_back(
        {.hidden_input = BuildHiddenInput(parts, depth),
         .final_norm = BuildNorm(parts, MtpName(names, names.mtp_final_norm, depth) + ".weight")});
  w.vocab_begin = vocab.begin;
  w.vocab_end = vocab.end;
  const bool attends = mesh.attends();
  if (attends && LoadsEmbedding(config))
    w.embedding = parts.Vocabulary(names.embedding, config.vocab_size, vocab);
  bytes.embedding += meter.Next();
  w.layers.reserve(config.layers.size());
  const TensorNames all = names;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    names = NamesOfLayer(all, config.first_layer + i);  // `parts` borrows it
    w.layers.push_back(BuildLayer(parts, i, bytes));
  }
  names = all;
  meter.Next();
  if (attends && config.has_head) {
    if (!config.eagle || config.eagle->inner_rows) w.final_norm = BuildFinalNorm(parts);
    bytes.norms += meter.Next();
    if (config.streams)
      w.head_streams = BuildStreams(parts, names.head_streams, config.streams->count);
    BuildHead(parts, &w);
    bytes.head += meter.Next();
  }
  w.bytes_mapped = static_cast<size_t>(std::llround(parts.bytes()));
  return w;
}

void RequestHead(const ModelConfig& config, WeightSource& source) {
  TensorNames names = NamesOf(config);
  const Mesh mesh;
  Parts parts({config, mesh, names}, source);
  UseHiddenInputNames(parts, &names);
  ModelWeights weights;
  BuildHead(parts, &weights);
}

}  // namespace switchyard
