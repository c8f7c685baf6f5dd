#include "schedule/plan.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard::schedule {
namespace {

bool HasPhase(bool experts, Phase phase) {
  return experts || phase == Phase::kAttention || phase == Phase::kExperts ||
         phase == Phase::kFinish;
}

// Builds the list pass by pass.
class Planner {
 public:
  explicit Planner(const StepShape& shape) : shape_(shape) {}

  void ForwardPass(int m) {
    BeginForward(m);
    for (int layer = 0; layer < shape_.layers(); ++layer) {
      for (const Phase phase : ForwardPhases(shape_.experts[layer])) Forward(m, layer, phase);
    }
    EndForward(m);
  }

  void BackwardPass(int m) {
    BeginBackward(m);
    for (int layer = shape_.layers() - 1; layer >= 0; --layer) {
      for (const Phase phase : BackwardPhases(shape_.experts[layer])) Backward(m, layer, phase);
    }
  }

  void WeightGradients(int m) {
    for (int layer = shape_.layers() - 1; layer >= 0; --layer) {
      list_.push_back({.kind = Kind::kWeights, .micro_batch = m, .layer = layer});
      EarlySum(m, layer);
    }
  }

  // Pairs forward pass `forth` with backward pass `back`: layer i of the first with layer (layers −
  // 1 − i) of the second.
  void Pair(int forth, int back) {
    BeginBackward(back);
    for (int i = 0; i < shape_.layers(); ++i) {
      const int down = shape_.layers() - 1 - i;
      for (const auto& [kind, phase] : PairOrder()) {
        if (kind == Kind::kForward) {
          if (i == 0 && phase == Phase::kAttention) BeginForward(forth);
          if (HasPhase(shape_.experts[i], phase)) Forward(forth, i, phase);
        } else if (HasPhase(shape_.experts[down], phase)) {
          Backward(back, down, phase);
        }
      }
    }
    EndForward(forth);
  }

  void FinalGradientSums() {
    if (!shape_.early_sums || shape_.micro_batches == 0) {
      for (int layer = shape_.layers() - 1; layer >= 0; --layer) SumGradients(layer);
    }
    SumGradients(Operation::kNone);
    list_.push_back({.kind = Kind::kAwaitSums});
  }

  std::vector<Operation> Take() { return std::move(list_); }

 private:
  void BeginForward(int m) {
    list_.push_back({.kind = Kind::kBegin, .micro_batch = m});
    if (!shape_.first()) list_.push_back({.kind = Kind::kReceive, .micro_batch = m});
  }
  void EndForward(int m) {
    list_.push_back({.kind = shape_.last() ? Kind::kHeads : Kind::kSend, .micro_batch = m});
  }
  void BeginBackward(int m) {
    if (!shape_.last()) list_.push_back({.kind = Kind::kReceiveGradient, .micro_batch = m});
  }
  void Forward(int m, int layer, Phase phase) {
    list_.push_back({.kind = Kind::kForward, .micro_batch = m, .layer = layer, .phase = phase});
  }
  void Backward(int m, int layer, Phase phase) {
    list_.push_back({.kind = Kind::kBackward, .micro_batch = m, .layer = layer, .phase = phase});
    if (phase != Phase::kAttention) return;
    if (layer == 0 && !shape_.first()) {
      list_.push_back({.kind = Kind::kSendGradient, .micro_batch = m});
    }
    if (shape_.order != Order::kZeroBubble) EarlySum(m, layer);
  }
  void EarlySum(int m, int layer) {
    if (shape_.early_sums && m + 1 == shape_.micro_batches) SumGradients(layer);
  }
  void SumGradients(int layer) { list_.push_back({.kind = Kind::kSumGradients, .layer = layer}); }

  const StepShape& shape_;
  std::vector<Operation> list_;
};

}  // namespace

std::span<const Phase> ForwardPhases(bool experts) {
  static constexpr Phase kMoe[] = {Phase::kAttention, Phase::kDispatch, Phase::kShared,
                                   Phase::kExperts,   Phase::kCombine,  Phase::kFinish};
  static constexpr Phase kDense[] = {Phase::kAttention, Phase::kExperts, Phase::kFinish};
  if (experts) return kMoe;
  return kDense;
}

std::span<const Phase> BackwardPhases(bool experts) {
  static constexpr Phase kMoe[] = {Phase::kFinish,  Phase::kCombine,  Phase::kShared,
                                   Phase::kExperts, Phase::kDispatch, Phase::kAttention};
  static constexpr Phase kDense[] = {Phase::kFinish, Phase::kExperts, Phase::kAttention};
  if (experts) return kMoe;
  return kDense;
}

std::span<const PairedPhase> PairOrder() {
  static constexpr PairedPhase kOrder[] = {
      {Kind::kBackward, Phase::kFinish},    {Kind::kBackward, Phase::kCombine},
      {Kind::kForward, Phase::kAttention},  {Kind::kForward, Phase::kDispatch},
      {Kind::kBackward, Phase::kShared},    {Kind::kBackward, Phase::kExperts},
      {Kind::kBackward, Phase::kDispatch},  {Kind::kForward, Phase::kShared},
      {Kind::kForward, Phase::kExperts},    {Kind::kForward, Phase::kCombine},
      {Kind::kBackward, Phase::kAttention}, {Kind::kForward, Phase::kFinish}};
  return kOrder;
}

const char* Name(Order order) {
  constexpr const char* kNames[] = {"plain", "overlapped", "zero-bubble"};
  return kNames[static_cast<int>(order)];
}

int WeightDelay(const StepShape& shape) {
  return shape.order == Order::kZeroBubble ? shape.stage : 0;
}

int WarmUp(const StepShape& shape) {
  const int after = shape.stages - 1 - shape.stage;
  const int wanted = shape.order == Order::kOverlapped ? 2 * after + 1 : after;
  return std::min(wanted, shape.micro_batches);
}

int MicroBatchSlots(const StepShape& shape) {
  return std::max(1, std::min(WarmUp(shape) + 1 + WeightDelay(shape), shape.micro_batches));
}

std::vector<Operation> Plan(const StepShape& shape) {
  CHECK_GE(shape.stage, 0);
  CHECK_GT(shape.stages, shape.stage);
  CHECK_GT(shape.layers(), 0);
  CHECK_GE(shape.micro_batches, 0);
  Planner planner(shape);
  const int warm_up = WarmUp(shape), delay = WeightDelay(shape);
  const bool separate = shape.order == Order::kZeroBubble;
  const auto backward = [&](int m) {
    planner.BackwardPass(m);
    if (separate && m >= delay) planner.WeightGradients(m - delay);
  };
  for (int m = 0; m < warm_up; ++m) planner.ForwardPass(m);
  for (int m = warm_up; m < shape.micro_batches; ++m) {
    if (shape.order == Order::kOverlapped) {
      planner.Pair(m, m - warm_up);
    } else {
      planner.ForwardPass(m);
      backward(m - warm_up);
    }
  }
  for (int m = shape.micro_batches - warm_up; m < shape.micro_batches; ++m) backward(m);
  for (int m = std::max(0, shape.micro_batches - delay); m < shape.micro_batches; ++m)
    planner.WeightGradients(m);
  planner.FinalGradientSums();
  return planner.Take();
}

}  // namespace switchyard::schedule
