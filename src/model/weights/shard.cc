#include "model/weights/shard.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {

void CheckSplits(const ModelConfig& config, const Mesh& mesh, bool whole_shared_expert) {
  const int64_t tp = mesh.tp();
  const AttentionConfig& a = config.attention;
  if (a.heads % tp != 0) {
    throw Invalid("--tp {} does not divide num_attention_heads {}", tp, a.heads);
  }
  const bool grouped = a.kind == AttentionConfig::Kind::kGrouped;
  if (grouped && a.kv_heads % tp != 0 && tp % a.kv_heads != 0) {
    throw Invalid("--tp {} neither divides num_key_value_heads {} nor is a multiple of it", tp,
                  a.kv_heads);
  }
  const bool has_dense = std::ranges::any_of(config.layers, [](const auto& l) { return !l.moe; });
  if (has_dense && config.intermediate < tp) {
    throw Invalid("--tp {} is more than intermediate_size {}", tp, config.intermediate);
  }
  if (!config.moe) return;
  if (config.moe->intermediate % mesh.moe_tp() != 0) {
    throw Invalid(
        "--tp {} over --ep {} splits each expert {} ways, which do not divide its "
        "intermediate size {}",
        tp, mesh.ep(), mesh.moe_tp(), config.moe->intermediate);
  }
  const int64_t shared = config.moe->shared_intermediate;
  if (shared != 0 && !whole_shared_expert && shared < tp) {
    throw Invalid("--tp {} is more than the shared expert's intermediate size {}", tp, shared);
  }
}

Range QueryHeads(const AttentionConfig& attention, const Mesh& mesh) {
  return EvenPart(attention.heads, mesh.tp(), mesh.tp_rank());
}

Range KvHeads(const AttentionConfig& attention, const Mesh& mesh) {
  if (attention.kv_heads >= mesh.tp()) {
    return EvenPart(attention.kv_heads, mesh.tp(), mesh.tp_rank());
  }
  const int64_t head = mesh.tp_rank() * attention.kv_heads / mesh.tp();
  return {head, head + 1};
}

Range VocabRows(int64_t vocab_size, int tp, int tp_rank) {
  const int64_t run = CeilDiv(vocab_size, tp);
  return {std::min(tp_rank * run, vocab_size), std::min((tp_rank + 1) * run, vocab_size)};
}

Range EvenPart(int64_t total, int parts, int index) {
  return {total * index / parts, total * (index + 1) / parts};
}

}  // namespace switchyard
