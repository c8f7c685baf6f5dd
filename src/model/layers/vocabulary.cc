#include "model/layers/vocabulary.h"

#include <algorithm>

#include "model/weights/shard.h"

namespace switchyard {

void Vocabulary::Embed(std::span<const int32_t> tokens, RankComm& comm, ThreadPool& pool,
                       float* out) const {
  const auto rows = static_cast<int64_t>(tokens.size());
  kernels::Embed({.ids = tokens.data(),
                  .m = rows,
                  .w = weights_.embedding,
                  .first = static_cast<int32_t>(weights_.vocab_begin),
                  .out = out},
                 pool);
  comm.tp->AllReduceSum(out, rows * config_.hidden);
}

std::span<const float> Vocabulary::Logits(const float* hidden, int64_t rows, RankComm& comm,
                                          ThreadPool& pool) {
  const int64_t vocab = config_.vocab_size, own = weights_.vocab_end - weights_.vocab_begin;
  const int tp = comm.tp->size();
  Activations& mine = tp == 1 ? logits_ : own_;
  mine.resize(rows * own);
  kernels::Linear({.x = hidden,
                   .ldx = config_.hidden,
                   .w = weights_.head,
                   .y = mine.data(),
                   .ldy = own,
                   .m = rows},
                  pool);
  if (tp == 1) return logits_;

  std::vector<size_t> bytes(tp);
  for (int r = 0; r < tp; ++r) bytes[r] = rows * VocabRows(vocab, tp, r).size() * sizeof(float);
  gathered_.resize(rows * vocab);
  logits_.resize(rows * vocab);
  comm.tp->AllGatherV(own_.data(), gathered_.data(), bytes);
  const float* block = gathered_.data();
  for (int r = 0; r < tp; ++r) {
    const auto [begin, end] = VocabRows(vocab, tp, r);
    for (int64_t t = 0; t < rows; ++t, block += end - begin) {
      std::copy_n(block, end - begin, logits_.data() + t * vocab + begin);
    }
  }
  return logits_;
}

}  // namespace switchyard
