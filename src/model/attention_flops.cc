#include "model/attention_flops.h"

#include <algorithm>

namespace switchyard {
namespace {

// The sum of min(⌊keys / ratio⌋, most) over positions with 1 to `input` keys.
double SumOfEntries(int64_t input, int64_t ratio, int64_t most) {
  const int64_t all = input / ratio;  // entries of the last position
  const int64_t full = std::min(all, most);
  // Each of the entries 1 to `full` is read from the position that ends it on.
  return static_cast<double>(full) * static_cast<double>(input + 1) -
         static_cast<double>(ratio) * static_cast<double>(full) * static_cast<double>(full + 1) / 2;
}

double FlopsOfEntries(const ModelConfig& config, int64_t input) {
  const AttentionConfig& a = config.attention;
  double flops = 0;
  for (const LayerConfig& layer : config.layers) {
    double read = SumOfEntries(input, 1, layer.window);
    if (layer.compress > 0)
      read += SumOfEntries(input, layer.compress, layer.overlaps ? a.index_topk : input);
    flops += 4.0 * static_cast<double>(a.head_dim * a.heads) * read;
    if (layer.overlaps)
      flops += 2.0 * static_cast<double>(a.index_heads * a.index_head_dim) *
               SumOfEntries(input, layer.compress, input);
  }
  return flops;
}

}  // namespace

double AttentionFlops(const ModelConfig& config, int64_t input) {
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionConfig::Kind::kCompressed) return FlopsOfEntries(config, input);
  const double key =
      a.kind == AttentionConfig::Kind::kLatent
          ? 2.0 * static_cast<double>(a.kv_lora_rank) + static_cast<double>(a.qk_rope_head_dim)
          : 2.0 * static_cast<double>(a.head_dim);
  // Causal: half of the keys. With an indexer, which scores them all, at most index_topk.
  const auto all = static_cast<double>(input), topk = static_cast<double>(a.index_topk);
  const double keys = topk > 0 && topk < all ? topk * (2 - topk / all) : all;
  const double index = static_cast<double>(a.index_heads * a.index_head_dim) * all;
  return all * (key * static_cast<double>(a.heads) * keys + index) *
         static_cast<double>(config.num_layers());
}

}  // namespace switchyard
