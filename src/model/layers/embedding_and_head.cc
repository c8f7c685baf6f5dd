#include "model/layers/embedding_and_head.h"

#include <algorithm>

#include "model/layers/token_exchange.h"
#include "model/weights/shard.h"

namespace switchyard {

void EmbeddingAndHead::Embed(std::span<const int32_t> tokens, RankComm& comm, ThreadPool& pool,
                             float* out) const {
  const auto rows = static_cast<int64_t>(tokens.size());
  kernels::Embed({.ids = tokens.data(),
                  .m = rows,
                  .w = weights_.embedding,
                  .first = static_cast<int32_t>(weights_.vocab_begin),
                  .out = out},
                 pool);
  comm.attn_tp->AllReduceSum(out, rows * config_.hidden);
}

std::span<const float> EmbeddingAndHead::Logits(const float* hidden,
                                                std::span<const int64_t> group_rows, RankComm& comm,
                                                ThreadPool& pool) {
  const Mesh& mesh = comm.mesh;
  const int64_t rows = group_rows[mesh.dp_rank()];
  if (mesh.whole_dense() || mesh.dp() == 1) {
    if (comm.attn_tp->size() == 1) {
      Multiply(hidden, rows, pool, logits_);
    } else {
      Multiply(hidden, rows, pool, own_);
      Join(*comm.attn_tp, own_.data(), rows, /*wanted=*/true);
    }
    return logits_;
  }
  const TokenSpread spread(mesh, group_rows);
  all_hidden_.resize(spread.total() * config_.hidden);
  GatherWorld(comm, spread, config_.hidden, hidden, all_hidden_.data());
  Multiply(all_hidden_.data(), spread.total(), pool, own_);
  logits_.clear();
  const float* next = own_.data();
  for (int group = 0; group < mesh.dp(); ++group) {
    Join(*comm.tp, next, group_rows[group], group == mesh.dp_rank());
    next += group_rows[group] * weights_.head.n;
  }
  return logits_;
}

void EmbeddingAndHead::Multiply(const float* hidden, int64_t rows, ThreadPool& pool,
                                Activations& out) const {
  out.resize(rows * weights_.head.n);
  if (rows == 0) return;
  kernels::Linear({.x = hidden,
                   .ldx = config_.hidden,
                   .w = weights_.head,
                   .y = out.data(),
                   .ldy = weights_.head.n,
                   .m = rows},
                  pool);
}

void EmbeddingAndHead::Join(Communicator& group, const float* own, int64_t rows, bool wanted) {
  const int64_t vocab = config_.vocab_size;
  const int ranks = group.size();
  std::vector<size_t> bytes(ranks);
  for (int r = 0; r < ranks; ++r)
    bytes[r] = rows * VocabRows(vocab, ranks, r).size() * sizeof(float);
  gathered_.resize(rows * vocab);
  group.AllGatherV(own, gathered_.data(), bytes);
  if (!wanted) return;
  logits_.resize(rows * vocab);
  const float* block = gathered_.data();
  for (int r = 0; r < ranks; ++r) {
    const auto [begin, end] = VocabRows(vocab, ranks, r);
    for (int64_t t = 0; t < rows; ++t, block += end - begin) {
      std::copy_n(block, end - begin, logits_.data() + t * vocab + begin);
    }
  }
}

}  // namespace switchyard
