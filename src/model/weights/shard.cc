#include "model/weights/shard.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace switchyard {

void CheckSplits(const ModelConfig& config, const Mesh& mesh, bool replicated_shared_expert) {
  const int64_t tp = mesh.tp(), attn_tp = mesh.attn_tp();
  const AttentionConfig& a = config.attention;
  const std::string attention_ranks =
      mesh.dp() == 1 ? fmt::format("--tp {}", tp)
                     : fmt::format("--tp {} over --dp-size {} = {}", tp, mesh.dp(), attn_tp);
  if (a.heads % attn_tp != 0) {
    throw Invalid("{} does not divide num_attention_heads {}; want a divisor", attention_ranks,
                  a.heads);
  }
  const bool grouped = a.kind == AttentionConfig::Kind::kGrouped;
  for (int64_t layer = 0; grouped && layer < config.num_layers(); ++layer) {
    const int64_t kv_heads = config.kv_heads(layer);
    if (kv_heads % attn_tp == 0 || attn_tp % kv_heads == 0) continue;
    throw Invalid("{} neither divides {} nor is a multiple of it; want a divisor or a multiple",
                  attention_ranks,
                  kv_heads == a.kv_heads ? fmt::format("num_key_value_heads {}", kv_heads)
                                         : fmt::format("the number of KV heads of layer {} ({})",
                                                       config.first_layer + layer, kv_heads));
  }
  if (config.has_linear() && config.linear->key_heads % attn_tp != 0) {
    throw Invalid("{} does not divide {} {}; want a divisor", attention_ranks,
                  config.linear->heads_key, config.linear->key_heads);
  }
  if (config.has_linear() && config.linear->norm_groups % attn_tp != 0)
    throw Invalid("{} does not divide group_norm_size {}; want a divisor", attention_ranks,
                  config.linear->norm_groups);
  if (a.kind == AttentionConfig::Kind::kCompressed && a.output_groups % attn_tp != 0)
    throw Invalid("{} does not divide o_groups {}; want a divisor", attention_ranks,
                  a.output_groups);
  for (int64_t layer = 0; !mesh.replicated_dense() && layer < config.num_layers(); ++layer) {
    if (config.layers[layer].dense() && config.dense_width(layer) < tp)
      throw Invalid("--tp {} is more than intermediate_size {}; want at most this size", tp,
                    config.dense_width(layer));
  }
  if (!config.moe) return;
  if (config.moe->intermediate % mesh.moe_tp() != 0) {
    throw Invalid(
        "--tp {} and --ep {} shard each expert over {} ranks (tp / ep), which is not a divisor of "
        "its intermediate size {}; change --tp or --ep",
        tp, mesh.ep(), mesh.moe_tp(), config.moe->intermediate);
  }
  const int64_t shared = config.moe->shared_intermediate;
  if (shared != 0 && !replicated_shared_expert && shared < tp) {
    throw Invalid(
        "--tp {} is more than the shared expert's intermediate size {}; want at most this size", tp,
        shared);
  }
}

Range LinearKeyHeads(const LinearAttentionConfig& linear, const Mesh& mesh) {
  return EvenPart(linear.key_heads, mesh.attn_tp(), mesh.attn_tp_rank());
}

Range QueryHeads(const AttentionConfig& attention, const Mesh& mesh) {
  return EvenPart(attention.heads, mesh.attn_tp(), mesh.attn_tp_rank());
}

Range KvHeads(const ModelConfig& config, int64_t layer, const Mesh& mesh) {
  const int64_t heads = config.kv_heads(layer);
  if (heads >= mesh.attn_tp()) return EvenPart(heads, mesh.attn_tp(), mesh.attn_tp_rank());
  const int64_t head = mesh.attn_tp_rank() * heads / mesh.attn_tp();
  return {head, head + 1};
}

int64_t MostKvHeads(const ModelConfig& config, const Mesh& mesh) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer)
    most = std::max(most, KvHeads(config, layer, mesh).size());
  return most;
}

Range VocabRows(int64_t vocab_size, int ranks, int rank) {
  const int64_t run = CeilDiv(vocab_size, ranks);
  return {std::min(rank * run, vocab_size), std::min((rank + 1) * run, vocab_size)};
}

Range EmbeddingRows(int64_t vocab_size, const Mesh& mesh) {
  return VocabRows(vocab_size, mesh.attn_tp(), mesh.attn_tp_rank());
}

Range HeadRows(int64_t vocab_size, const Mesh& mesh) {
  return mesh.replicated_dense() ? EmbeddingRows(vocab_size, mesh)
                                 : VocabRows(vocab_size, mesh.tp(), mesh.tp_rank());
}

}  // namespace switchyard
