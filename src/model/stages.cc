#include "model/stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/format.h"
#include "kernels/ops.h"
#include "model/state_storage.h"

namespace switchyard {
namespace {

double AttentionCost(const ModelConfig& model, int64_t layer) {
  if (!model.layers[layer].mixer) return 0;
  if (model.layers[layer].linear) {
    const LinearAttentionConfig& c = *model.linear;
    const auto keys = static_cast<double>(c.key_heads * c.key_dim);
    const auto values = static_cast<double>(c.value_heads * c.value_dim);
    return static_cast<double>(model.hidden) * (2 * keys + 3 * values);  // q, k, v, z and output
  }
  const AttentionConfig& a = model.attention;
  const auto hidden = static_cast<double>(model.hidden), heads = static_cast<double>(a.heads);
  if (a.kind == AttentionConfig::Kind::kGrouped) {
    const auto key = static_cast<double>(a.head_dim), value = static_cast<double>(a.value_dim());
    const auto kv_heads = static_cast<double>(model.kv_heads(layer));
    return hidden * (heads * (key + (a.gate ? 2 : 1) * value) + kv_heads * (key + value));
  }
  if (a.kind == AttentionConfig::Kind::kCompressed) {
    const auto head = static_cast<double>(a.head_dim), rank = static_cast<double>(a.q_lora_rank);
    const auto output = static_cast<double>(a.output_rank);
    const LayerConfig& kind = model.layers[layer];
    double cost = hidden * (rank + head) + heads * head * (rank + output) +
                  static_cast<double>(a.output_groups) * output * hidden;
    // Rows and gates of blocks of entries, which have two series if the blocks overlap.
    if (kind.compress > 0) cost += 2 * hidden * head * (kind.overlaps ? 2 : 1);
    if (!kind.overlaps) return cost;
    const auto index_head = static_cast<double>(a.index_head_dim);
    const auto index_heads = static_cast<double>(a.index_heads);
    return cost + 4 * hidden * index_head + index_heads * (rank * index_head + hidden);
  }
  const auto rope = static_cast<double>(a.qk_rope_head_dim);
  const auto nope = static_cast<double>(a.qk_nope_head_dim);
  const auto value = static_cast<double>(a.v_head_dim);
  const auto latent = static_cast<double>(a.kv_lora_rank), low = static_cast<double>(a.q_lora_rank);
  const double queries =
      low > 0 ? low * (hidden + heads * (nope + rope)) : hidden * heads * (nope + rope);
  const double cost =
      queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden;
  if (!model.has_indexer(layer)) return cost;
  const auto index_head = static_cast<double>(a.index_head_dim);
  const auto index_heads = static_cast<double>(a.index_heads);
  return cost + index_heads * (low * index_head + hidden) + hidden * index_head;
}

double LayerCost(const ModelConfig& model, int64_t index) {
  const LayerConfig& layer = model.layers[index];
  const auto hidden = static_cast<double>(model.hidden);
  double attention = AttentionCost(model, index);
  // The weights of the streams of both blocks.
  if (model.streams)
    attention += 2 * static_cast<double>(model.residual_width() * model.streams->logits());
  const double matrices = model.activation == kernels::Activation::kRelu2 ? 2 : 3;
  const double dense =
      layer.dense() ? matrices * hidden * static_cast<double>(model.dense_width(index)) : 0.0;
  if (!layer.moe || !model.moe) return attention + dense;
  const MoeModelConfig& moe = *model.moe;
  const auto routed = static_cast<double>(moe.router.top_k * moe.intermediate);
  const auto shared = static_cast<double>(moe.shared_intermediate);
  const auto row = static_cast<double>(model.expert_row_width());
  const double latent = moe.latent > 0 ? 2 * hidden * row : 0;
  return attention + dense + latent + matrices * (row * routed + hidden * shared) +
         hidden * static_cast<double>(moe.router.num_logits());
}

// Tokens of the decode pass for which a split is made.
constexpr double kDecodeTokens = 32;

// Weights of a layer that a decode pass reads, if its tokens select experts at random. They take
// most of the pass's time: unlike a prompt, it uses each weight for a few tokens only.
double LayerReads(const ModelConfig& model, int64_t index) {
  if (!model.layers[index].moe || !model.moe) return LayerCost(model, index);
  const MoeModelConfig& moe = *model.moe;
  const auto selected = static_cast<double>(moe.router.top_k);
  const auto experts = static_cast<double>(std::max(moe.router.num_experts, moe.router.top_k));
  const double read = experts * (1 - std::pow(1 - selected / experts, kDecodeTokens));
  return LayerCost(model, index) + 3 * static_cast<double>(model.hidden) *
                                       static_cast<double>(moe.intermediate) * (read - selected);
}

// Whether layer `layer`, which is not the first, needs the stage of the layer before.
bool NeedsLayerBefore(const ModelConfig& model, int64_t layer) {
  return model.layers[layer - 1].shortcut || model.layers[layer].shared_index;
}

// Multiplications of a layer's attention for one token and key.
double KeyCost(const ModelConfig& model) {
  const AttentionConfig& a = model.attention;
  const auto heads = static_cast<double>(a.heads);
  if (a.kind == AttentionConfig::Kind::kGrouped)
    return heads * static_cast<double>(a.head_dim + a.value_dim());
  if (a.kind == AttentionConfig::Kind::kCompressed)
    return heads * static_cast<double>(2 * a.head_dim);
  return heads * static_cast<double>(2 * a.kv_lora_rank + a.qk_rope_head_dim);
}

// The cost of a split so far. Of two splits with the same largest stage, the more even one is
// better.
struct SplitCost {
  double largest = std::numeric_limits<double>::infinity(), squares = 0;
  int last = 0;  // layers of the last stage
  bool Beats(const SplitCost& other) const {
    return largest != other.largest ? largest < other.largest : squares < other.squares;
  }
};

// Numbers of layers of the stages. best[s][n]: of the first n layers in s + 1 stages.
std::vector<int> SizesByCost(const ModelConfig& model, int stages) {
  const auto layers = static_cast<int>(model.num_layers());
  const double head = static_cast<double>(model.hidden) * static_cast<double>(model.output_width());
  double prompt = 0, decode = head;
  for (int i = 0; i < layers; ++i) {
    prompt += LayerCost(model, i);
    decode += LayerReads(model, i);
  }
  std::vector<double> sum(layers + 1, 0.0);  // of the first layers
  for (int i = 0; i < layers; ++i)
    sum[i + 1] = sum[i] + LayerCost(model, i) / prompt + LayerReads(model, i) / decode;
  sum[layers] += head / decode;
  std::vector best(stages, std::vector<SplitCost>(layers + 1));
  for (int n = 1; n <= layers; ++n) best[0][n] = {sum[n], sum[n] * sum[n], n};
  for (int s = 1; s < stages; ++s) {
    for (int n = s + 1; n <= layers; ++n) {
      for (int last = 1; last <= n - s; ++last) {
        if (NeedsLayerBefore(model, n - last)) continue;
        const SplitCost& rest = best[s - 1][n - last];
        if (rest.last == 0) continue;  // no split
        const double cost = sum[n] - sum[n - last];
        const SplitCost split{std::max(rest.largest, cost), rest.squares + cost * cost, last};
        if (split.Beats(best[s][n])) best[s][n] = split;
      }
    }
  }
  if (best[stages - 1][layers].last == 0) {
    int needed = 0;
    for (int layer = 1; layer < layers; ++layer) needed += NeedsLayerBefore(model, layer) ? 1 : 0;
    throw Invalid(
        "--pp-size {}: {} of the {} layers need the same stage as the next one, so there are fewer "
        "stages",
        stages, needed, layers);
  }
  std::vector<int> sizes(stages);
  int left = layers;
  for (int s = stages - 1; s >= 0; --s) {
    sizes[s] = best[s][left].last;
    left -= sizes[s];
  }
  return sizes;
}

void CheckSizes(const ModelConfig& model, std::span<const int> sizes, int stages,
                const std::string& name) {
  const int64_t layers = model.num_layers();
  const std::string text = Joined(sizes, ",");
  if (std::ssize(sizes) != stages)
    throw Invalid("{} {}: want {} numbers, one for each stage (--pp-size)", name, text, stages);
  for (const int size : sizes)
    if (size < 1) throw Invalid("{} {}: each stage needs at least 1 layer", name, text);
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (sum != layers)
    throw Invalid("{} {}: the sum is {}, but the model has {} layers", name, text, sum, layers);
  int64_t end = 0;
  for (const int size : sizes) {
    end += size;
    if (end < layers && NeedsLayerBefore(model, end))
      throw Invalid("{} {}: layers {} and {} are parts of one block and need the same stage", name,
                    text, end - 1, end);
  }
}

}  // namespace

std::vector<schedule::LayerRange> SplitLayers(const ModelConfig& model, int stages,
                                              std::span<const int> sizes, const std::string& name) {
  if (stages > model.num_layers())
    throw Invalid("--pp-size {}: the model has {} layers, and each stage needs at least 1", stages,
                  model.num_layers());
  if (!sizes.empty()) CheckSizes(model, sizes, stages, name);
  const std::vector<int> chosen =
      sizes.empty() ? SizesByCost(model, stages) : std::vector<int>(sizes.begin(), sizes.end());
  std::vector<schedule::LayerRange> ranges;
  int begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    ranges.push_back({.begin = begin,
                      .end = begin + chosen[stage],
                      .has_embedding = stage == 0,
                      .has_head = stage + 1 == stages});
    begin = ranges.back().end;
  }
  return ranges;
}

double KeysOfWeights(const ModelConfig& model) {
  double weights = 0, of_key = 0;
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    const LayerConfig& layer = model.layers[i];
    weights += LayerCost(model, i);
    if (!layer.attends()) continue;
    const AttentionConfig& a = model.attention;
    // An indexer scores all keys, or all entries.
    if (model.has_indexer(i))
      of_key += static_cast<double>(a.index_heads) * static_cast<double>(a.index_head_dim) /
                std::max(layer.compress, 1);
    if (a.kind == AttentionConfig::Kind::kCompressed) {
      const int64_t most = layer.window + (layer.overlaps ? a.index_topk : 0);
      weights += KeyCost(model) * static_cast<double>(most);
      if (layer.compress > 0 && !layer.overlaps) of_key += KeyCost(model) / layer.compress;
      continue;
    }
    const int64_t most = std::max<int64_t>(std::max(layer.window, layer.chunk), a.index_topk);
    if (most > 0) {
      weights += KeyCost(model) * static_cast<double>(most);
    } else {
      of_key += KeyCost(model);
    }
  }
  return of_key > 0 ? weights / of_key : std::numeric_limits<double>::infinity();
}

ModelConfig StageConfigOf(const ModelConfig& model, const schedule::LayerRange& range) {
  ModelConfig stage = model;
  stage.layers.assign(model.layers.begin() + range.begin, model.layers.begin() + range.end);
  stage.first_layer = range.begin;
  const auto moe = std::ranges::find_if(model.layers, &LayerConfig::moe);
  if (moe != model.layers.end()) stage.first_moe_layer = moe - model.layers.begin();
  stage.whole_routed_width = model.routed_width();
  stage.whole_layers = model.num_layers();
  stage.whole_entry_states = StateStorage::EntryFloats(model);
  stage.has_embedding = range.has_embedding;
  stage.has_head = range.has_head;
  if (std::ranges::none_of(stage.layers, &LayerConfig::moe)) stage.moe.reset();
  return stage;
}

}  // namespace switchyard
