#include "model/layers/embedding_and_head.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/layers/token_exchange.h"
#include "model/weights/shard.h"

namespace switchyard {

void EmbeddingAndHead::Embed(const LayerContext& c, float* out) const {
  c.device.Embed({.ids = c.rows.ids,
                  .m = c.rows.tokens,
                  .w = weights_.embedding,
                  .first = static_cast<int32_t>(weights_.vocab_begin),
                  .out = out});
  c.groups.attn_tp->AllReduceSum(out, c.rows.tokens * config_.hidden);
}

bool EmbeddingAndHead::Reserve(const Mesh& mesh, std::span<const int64_t> group_rows,
                               kernels::Device& device) {
  const int64_t all = std::accumulate(group_rows.begin(), group_rows.end(), int64_t{0});
  const int64_t most = std::ranges::max(group_rows);
  const bool split = SplitOverWorld(mesh), joins = split || mesh.attn_tp() > 1;
  bool moved = logits_.Reserve(device, most * config_.vocab_size);
  if (split) moved |= all_hidden_.Reserve(device, all * config_.hidden);
  if (!joins) return moved;
  moved |= own_.Reserve(device, (split ? all : most) * weights_.head.n);
  moved |= gathered_.Reserve(device, most * config_.vocab_size);
  return moved;
}

const float* EmbeddingAndHead::Logits(const LayerContext& c, const float* hidden,
                                      std::span<const int64_t> group_rows) {
  const int64_t rows = group_rows[c.mesh.dp_rank()];
  if (!SplitOverWorld(c.mesh)) {
    if (c.groups.attn_tp->size() == 1) {
      Multiply(c.device, hidden, rows, logits_.data());
    } else {
      Multiply(c.device, hidden, rows, own_.data());
      Join(*c.groups.attn_tp, c.device, own_.data(), rows, /*wanted=*/true);
    }
    return logits_.data();
  }
  const TokenPartition partition(c.mesh, group_rows);
  GatherWorld(c.mesh, c.groups, partition, config_.hidden, hidden, all_hidden_.data());
  Multiply(c.device, all_hidden_.data(), partition.total(), own_.data());
  const float* next = own_.data();
  for (int group = 0; group < c.mesh.dp(); ++group) {
    Join(*c.groups.tp, c.device, next, group_rows[group], group == c.mesh.dp_rank());
    next += group_rows[group] * weights_.head.n;
  }
  return logits_.data();
}

void EmbeddingAndHead::Multiply(kernels::Device& device, const float* hidden, int64_t rows,
                                float* out) const {
  if (rows == 0) return;
  device.Linear({.x = hidden,
                 .ldx = config_.hidden,
                 .w = weights_.head,
                 .y = out,
                 .ldy = weights_.head.n,
                 .m = rows});
}

void EmbeddingAndHead::Join(Collectives& group, kernels::Device& device, const float* own,
                            int64_t rows, bool wanted) {
  const int64_t vocab = config_.vocab_size;
  const int ranks = group.size();
  std::vector<size_t> bytes(ranks);
  for (int r = 0; r < ranks; ++r)
    bytes[r] = rows * VocabRows(vocab, ranks, r).size() * sizeof(float);
  group.AllGatherV(own, gathered_.data(), bytes);
  if (!wanted || rows == 0) return;
  const float* block = gathered_.data();
  for (int r = 0; r < ranks; ++r) {
    const auto [begin, end] = VocabRows(vocab, ranks, r);
    const int64_t width = end - begin;
    device.CopyRows({.x = block,
                     .ldx = width,
                     .y = logits_.data() + begin,
                     .ldy = vocab,
                     .m = rows,
                     .n = width});
    block += rows * width;
  }
}

}  // namespace switchyard
