#include "train/layers/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

constexpr int64_t kRowGrain = 32;

std::string BlockName(const TensorNames& names, const std::string& prefix) {
  return prefix + names.moe + ".";
}

}  // namespace

template <typename T>
MoeLayer<T>::MoeLayer(const ModelConfig& config, const TensorNames& names,
                      const std::string& prefix, const ExpertRanks& ranks, const TensorGroup& tp,
                      ParameterSet<T>& set, const BackwardOptions& backward)
    : hidden_(config.hidden),
      num_experts_(config.moe->router.num_experts),
      k_(config.moe->router.top_k),
      ranks_(ranks),
      tp_(tp),
      mine_(EvenPart(num_experts_, ranks.size, ranks.rank)),
      recompute_(DropsExperts(backward.recompute)),
      separate_weights_(backward.separate_weights),
      router_(config.moe->router, config.hidden, BlockName(names, prefix) + names.router,
              names.correction_bias ? CorrectionBiasName(names, BlockName(names, prefix)) : "",
              set) {
  const std::string block = BlockName(names, prefix);
  const auto network = [&](const std::string& at, const std::string& gate, const std::string& up,
                           const std::string& down, int64_t width, bool expert,
                           const TensorGroup& ranks) {
    return FeedForward<T>::Make(set, at + gate, at + up, at + down, hidden_, width, expert, ranks);
  };
  for (int64_t e = mine_.begin; e < mine_.end; ++e) {
    experts_.push_back(network(fmt::format("{}experts.{}.", block, e), names.expert_gate,
                               names.expert_up, names.expert_down, config.moe->intermediate, true,
                               TensorGroup()));
  }
  if (const int64_t width = config.moe->shared_intermediate; width > 0) {
    shared_.push_back(network(block + names.shared + ".", "gate_proj", "up_proj", "down_proj",
                              width, false, tp_));
  }
}

template <typename T>
void MoeLayer<T>::Route(const T* x, int64_t m, MoeState<T>* s, ThreadPool& pool) {
  router_.Forward(x, m, &s->router, pool);
  const std::vector<int32_t>& ids = s->router.topk.ids;
  s->sent.assign(num_experts_, 0);
  for (const int32_t e : ids)
    if (e >= 0) ++s->sent[e];
  std::vector<int32_t> next(num_experts_);
  std::exclusive_scan(s->sent.begin(), s->sent.end(), next.begin(), 0);
  s->slots.resize(std::accumulate(s->sent.begin(), s->sent.end(), int64_t{0}));
  s->place.assign(ids.size(), -1);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    if (ids[slot] < 0) continue;
    s->place[slot] = next[ids[slot]]++;
    s->slots[s->place[slot]] = static_cast<int32_t>(slot);
  }
}

template <typename T>
bool MoeLayer<T>::Gathers(const ThreadPool& pool) const {
  return IsSingleRank() && !separate_weights_ && UsesTiles<T>(experts_, pool);
}

template <typename T>
void MoeLayer<T>::BeginDispatch(const T* x, MoeState<T>* s, ThreadPool& pool) {
  s->x = x;
  if (Gathers(pool)) return;
  SendToExperts(x, /*gradient=*/false, &s->rows, s, pool);
}

template <typename T>
void MoeLayer<T>::EndDispatch(MoeState<T>* s, ThreadPool& pool) {
  ReceiveRows(/*gradient=*/false, &s->rows, s, pool);
}

template <typename T>
void MoeLayer<T>::RunExperts(MoeState<T>* s, ThreadPool& pool) {
  if (Gathers(pool)) {
    s->outputs.resize(s->slots.size() * hidden_);
    return ForwardTiles<T>(experts_, s->offsets, TokenRows(*s), &s->experts, s->outputs.data(),
                           pool);
  }
  s->results.resize(s->rows.size());
  Forward<T>(experts_, s->offsets, s->rows.data(), &s->experts, s->results.data(), pool);
}

template <typename T>
void MoeLayer<T>::BeginCombine(MoeState<T>* s, ThreadPool& pool) {
  ReturnRows(s->results, {}, s, pool);
}

template <typename T>
void MoeLayer<T>::EndCombine(int64_t m, MoeState<T>* s, T* y, ThreadPool& pool) {
  if (!Gathers(pool)) ReceiveReturnedRows(&s->results, &s->outputs, nullptr, s, pool);
  pool.RunRanges(m, kRowGrain, [&](int64_t begin, int64_t end) {
    ScratchBuffer<T> room(hidden_);
    T* sum = room.data();
    for (int64_t t = begin; t < end; ++t) {
      std::fill_n(sum, hidden_, T{0});
      for (int64_t slot = t * k_; slot < (t + 1) * k_; ++slot) {
        if (s->place[slot] < 0) continue;
        const T* output = s->outputs.data() + s->place[slot] * hidden_;
        AddScaled(output, s->router.weights[slot], sum, hidden_);
      }
      if (!shared_.empty()) {
        AddScaled(s->shared_output.data() + t * hidden_, T{1}, sum, hidden_);
      }
      AddScaled(sum, T{1}, y + t * hidden_, hidden_);
    }
  });
}

template <typename T>
void MoeLayer<T>::SharedForward(const T* x, int64_t all, MoeState<T>* s, ThreadPool& pool) {
  if (shared_.empty()) return;
  s->shared_output.resize(tp_.Mine(all).size() * hidden_);
  const int32_t offsets[] = {0, static_cast<int32_t>(all)};
  const T* rows = tp_.Gather(x, all, hidden_, &s->all_x);
  PartialRows<T> out(tp_, s->shared_output.data(), all, hidden_);
  Forward<T>(shared_, offsets, rows, &s->shared, out.data(), pool);
  out.Scatter();
}

template <typename T>
void MoeLayer<T>::BeginCombineGradient(const T* x, const T* dy, int64_t m, MoeState<T>* s,
                                       ThreadPool& pool) {
  s->dweights.assign(m * k_, T{0});
  s->x = x;
  s->dy = dy;
  if (Gathers(pool)) return;
  if (recompute_) {
    // Rows from other ranks are still there.
    if (IsSingleRank()) SendToExperts(x, /*gradient=*/false, &s->rows, s, pool);
    return SendToExperts(dy, /*gradient=*/true, &s->results, s, pool);
  }
  pool.RunRanges(m, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin * k_; slot < end * k_; ++slot) {
      if (s->place[slot] < 0) continue;
      const T* output = s->outputs.data() + s->place[slot] * hidden_;
      s->dweights[slot] = Dot(dy + slot / k_ * hidden_, output, hidden_);
    }
  });
  SendToExperts(dy, /*gradient=*/true, &s->results, s, pool);
}

template <typename T>
void MoeLayer<T>::EndCombineGradient(MoeState<T>* s, ThreadPool& pool) {
  ReceiveRows(/*gradient=*/true, &s->results, s, pool);
}

template <typename T>
void MoeLayer<T>::RunExpertsGradient(MoeState<T>* s, ThreadPool& pool, LaterWeights<T>* later) {
  if (Gathers(pool)) {
    if (recompute_) RunExperts(s, pool);
    // dx overwrites the expert outputs tile by tile. The gradients of the router weights read each
    // tile before that.
    return BackwardTiles<T>(experts_, s->offsets, TokenRows(*s), &s->experts, OutputGradients(s),
                            s->outputs.data(), false, pool);
  }
  s->drows.resize(s->rows.size());
  if (recompute_) RecomputeOutputs(s, pool);
  Backward<T>(experts_, s->offsets, s->rows.data(), &s->experts, s->results.data(), s->drows.data(),
              false, pool, later);
}

template <typename T>
void MoeLayer<T>::BeginDispatchGradient(MoeState<T>* s, ThreadPool& pool) {
  ReturnRows(s->drows, s->row_dweights, s, pool);
}

template <typename T>
void MoeLayer<T>::SharedBackward(const T* x, const T* dy, int64_t all, MoeState<T>* s,
                                 ThreadPool& pool, LaterWeights<T>* later) {
  if (shared_.empty()) return;
  s->dshared.resize(tp_.Mine(all).size() * hidden_);
  const int32_t offsets[] = {0, static_cast<int32_t>(all)};
  const GatheredRows<T> dout(tp_, dy, all, hidden_);
  PartialRows<T> dx(tp_, s->dshared.data(), all, hidden_);
  if (recompute_) {
    const T* rows = tp_.Gather(x, all, hidden_, &s->all_x);
    Forward<T>(shared_, offsets, rows, &s->shared, nullptr, pool);
  }
  // dy changes before the weight gradients are computed.
  const T* d = later != nullptr ? later->HoldCopy(dout.data(), all * hidden_) : dout.data();
  Backward<T>(shared_, offsets, tp_.alone() ? x : s->all_x.data(), &s->shared, d, dx.data(), false,
              pool, later);
  dx.Scatter();
}

template <typename T>
void MoeLayer<T>::EndDispatchGradient(const T* x, int64_t m, MoeState<T>* s, T* dx,
                                      ThreadPool& pool) {
  const auto receive = [&] {
    if (Gathers(pool)) return;
    ReceiveReturnedRows(&s->drows, &s->outputs, recompute_ ? &s->dweights : nullptr, s, pool);
  };
  if (recompute_) receive();  // with the gradients of the router weights
  router_.Backward(x, m, s->router, s->dweights.data(), dx, pool);
  if (!recompute_) receive();
  pool.RunRanges(m, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = dx + t * hidden_;
      for (int64_t slot = t * k_; slot < (t + 1) * k_; ++slot) {
        if (s->place[slot] < 0) continue;
        AddScaled(s->outputs.data() + s->place[slot] * hidden_, T{1}, to, hidden_);
      }
      if (!shared_.empty()) AddScaled(s->dshared.data() + t * hidden_, T{1}, to, hidden_);
    }
  });
}

template <typename T>
void MoeLayer<T>::SwapDropped(MoeState<T>& a, MoeState<T>& b) const {
  using State = MoeState<T>;
  for (const auto member :
       {&State::outputs, &State::results, &State::drows, &State::row_weights, &State::row_dweights,
        &State::all_x, &State::shared_output, &State::dshared}) {
    (a.*member).swap(b.*member);
  }
  std::swap(a.experts, b.experts);
  std::swap(a.shared, b.shared);
  if (IsSingleRank()) a.rows.swap(b.rows);
}

template <typename T>
ActivationCounts MoeLayer<T>::Count(int64_t m, int64_t all, bool balances,
                                    const ThreadPool& pool) const {
  const int64_t slots = m * k_;  // also the number of rows of this rank's experts
  const bool exchanges = !IsSingleRank(), copies = !Gathers(pool);
  ActivationCounts counts{.kept = router_.StateElements(m, balances) + slots};  // and dweights
  counts.experts = StateElements<T>(experts_, slots, pool) + slots * hidden_;   // and outputs
  if (copies) counts.experts += 2 * slots * hidden_;                            // results and drows
  if (copies) (exchanges ? counts.kept : counts.experts) += slots * hidden_;    // rows
  if (exchanges && recompute_) counts.experts += 2 * slots;
  if (separate_weights_) counts.kept += slots * experts_[0].gate.n;
  if (separate_weights_ && !shared_.empty()) counts.kept += all * (shared_[0].gate.n + hidden_);
  if (shared_.empty()) return counts;
  counts.experts += StateElements<T>(shared_, all, pool) + 2 * m * hidden_;
  if (!tp_.alone()) counts.experts += all * hidden_;
  return counts;
}

template class MoeLayer<float>;
template class MoeLayer<double>;

}  // namespace switchyard::train
