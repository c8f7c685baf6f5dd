#include "model/layers/embedding_and_head.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/layers/token_exchange.h"
#include "model/weights/shard.h"

namespace switchyard {

void EmbeddingAndHead::Embed(const Pass& pass, float* out) const {
  c_.device.Embed({.ids = pass.rows.ids,
                   .m = pass.rows.tokens,
                   .w = weights_.embedding,
                   .first = static_cast<int32_t>(weights_.vocab_begin),
                   .scale = c_.config.embedding_scale,
                   .out = out});
  c_.groups.attn_tp->AllReduceSum(out, pass.rows.tokens * c_.config.hidden);
}

bool EmbeddingAndHead::Reserve(std::span<const int64_t> group_rows, HeadBuffers* buffers) const {
  const int64_t all = std::accumulate(group_rows.begin(), group_rows.end(), int64_t{0});
  const int64_t most = std::ranges::max(group_rows), vocab = c_.config.output_width();
  const bool split = SplitOverWorld() && !c_.config.pooling;
  const bool joins = split || (c_.mesh.attn_tp() > 1 && !c_.config.pooling);
  bool moved = buffers->logits.Reserve(c_.device, most * vocab);
  if (split) moved |= buffers->all_hidden.Reserve(c_.device, all * c_.config.hidden);
  if (!joins) return moved;
  moved |= buffers->own.Reserve(c_.device, (split ? all : most) * weights_.head.n);
  moved |= buffers->gathered.Reserve(c_.device, most * vocab);
  return moved;
}

void EmbeddingAndHead::Logits(std::span<const int64_t> group_rows, const float* hidden,
                              HeadBuffers* head) const {
  HeadBuffers& buffers = *head;
  const int64_t rows = group_rows[c_.mesh.dp_rank()];
  if (c_.config.pooling) return Pool(hidden, rows, buffers.logits.data());
  if (!SplitOverWorld()) {
    if (c_.groups.attn_tp->size() == 1) return Multiply(hidden, rows, buffers.logits.data());
    Multiply(hidden, rows, buffers.own.data());
    return Join(*c_.groups.attn_tp, buffers.own.data(), rows, /*wanted=*/true, buffers);
  }
  const TokenPartition partition(c_.mesh, group_rows);
  GatherWorld(c_.mesh, c_.groups, partition, c_.config.hidden, hidden, buffers.all_hidden.data());
  Multiply(buffers.all_hidden.data(), partition.total(), buffers.own.data());
  const float* next = buffers.own.data();
  for (int group = 0; group < c_.mesh.dp(); ++group) {
    Join(*c_.groups.tp, next, group_rows[group], group == c_.mesh.dp_rank(), buffers);
    next += group_rows[group] * weights_.head.n;
  }
}

void EmbeddingAndHead::Pool(const float* hidden, int64_t rows, float* out) const {
  if (rows == 0) return;
  const int64_t width = c_.config.hidden;
  if (c_.config.pooling->classifies()) return Multiply(hidden, rows, out);
  c_.device.CopyRows({.x = hidden, .ldx = width, .y = out, .ldy = width, .m = rows, .n = width});
}

void EmbeddingAndHead::Multiply(const float* hidden, int64_t rows, float* out) const {
  if (rows == 0) return;
  const Tensor& bias = weights_.head_bias;
  c_.device.Linear({.x = hidden,
                    .ldx = c_.config.hidden,
                    .w = weights_.head,
                    .bias = bias.defined() ? bias.data<float>() : nullptr,
                    .y = out,
                    .ldy = weights_.head.n,
                    .m = rows});
}

void EmbeddingAndHead::Join(Collectives& group, const float* own, int64_t rows, bool wanted,
                            HeadBuffers& buffers) const {
  const int64_t vocab = c_.config.head_rows();
  const int ranks = group.size();
  std::vector<size_t> bytes(ranks);
  for (int r = 0; r < ranks; ++r)
    bytes[r] = rows * VocabRows(vocab, ranks, r).size() * sizeof(float);
  group.AllGatherV(own, buffers.gathered.data(), bytes);
  if (!wanted || rows == 0) return;
  const float* block = buffers.gathered.data();
  for (int r = 0; r < ranks; ++r) {
    const auto [begin, end] = VocabRows(vocab, ranks, r);
    const int64_t width = end - begin;
    c_.device.CopyRows({.x = block,
                        .ldx = width,
                        .y = buffers.logits.data() + begin,
                        .ldy = vocab,
                        .m = rows,
                        .n = width});
    block += rows * width;
  }
}

}  // namespace switchyard
