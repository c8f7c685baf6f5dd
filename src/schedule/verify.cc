#include "schedule/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

namespace switchyard::schedule {

Operation Constraints::Add(const Operation& operation) {
  operations_.insert(operation);
  return operation;
}

Operation Constraints::After(const Operation& previous, const Operation& next) {
  Before(previous, next);
  return Add(next);
}

void Constraints::Between(const Operation& first, const Operation& operation,
                          const Operation& last) {
  After(first, operation);
  Before(operation, last);
}

void Constraints::Before(const Operation& first, const Operation& last) {
  order_.emplace_back(first, last);
}

std::string Constraints::FindError(std::span<const Operation> list, int first_layer) const {
  const auto describe = [&](const Operation& o) { return Describe(o, first_layer); };
  std::map<Operation, size_t> at;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!operations_.contains(list[i])) {
      return fmt::format("operation {}, {}, is not part of this step", i, describe(list[i]));
    }
    if (!at.emplace(list[i], i).second) {
      return fmt::format("operations {} and {} are the same: {}", at[list[i]], i,
                         describe(list[i]));
    }
  }
  for (const Operation& operation : operations_) {
    if (!at.contains(operation)) return fmt::format("{} is missing", describe(operation));
  }
  for (const auto& [first, last] : order_) {
    if (at.at(first) > at.at(last)) {
      return fmt::format("{} comes before {}", describe(last), describe(first));
    }
  }
  return {};
}

namespace {

// The operation that starts the exchange which `end` completes. In a dense layer, no such operation
// exists.
Operation StartOf(const Operation& end) {
  Operation start = end;
  const bool forward = end.kind == Kind::kForward;
  // In the forward pass, kExperts reads the rows of dispatch, and kFinish those of combine. In the
  // backward pass, kExperts reads the gradient of combine, and kAttention that of dispatch.
  start.phase = (end.phase == Phase::kExperts) == forward ? Phase::kDispatch : Phase::kCombine;
  return start;
}

}  // namespace

void ExchangesInFlight::Apply(const Operation& operation) {
  if (EndsExchange(operation)) std::erase(started_, StartOf(operation));
  if (BeginsExchange(operation)) started_.push_back(operation);
}

std::string ExchangesInFlight::Describe() const {
  std::string text;
  for (const Operation& start : started_) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", start.micro_batch,
                        start.phase == Phase::kDispatch ? "d" : "c",
                        start.kind == Kind::kBackward ? "'" : "");
  }
  return text;
}

int MaxExchangesInFlight(std::span<const Operation> list) {
  ExchangesInFlight exchanges;
  size_t most = 0;
  for (const Operation& operation : list) {
    exchanges.Apply(operation);
    most = std::max(most, exchanges.started().size());
  }
  return static_cast<int>(most);
}

std::string FindExchangeError(std::span<const Operation> list, int limit, int first_layer) {
  ExchangesInFlight exchanges;
  const auto describe = [&](const Operation& o) { return Describe(o, first_layer); };
  for (const Operation& operation : list) {
    exchanges.Apply(operation);
    if (!BeginsExchange(operation)) continue;
    const std::span<const Operation> started = exchanges.started();
    for (const Operation& other : started.first(started.size() - 1)) {
      if (other.micro_batch == operation.micro_batch) {
        return fmt::format("{} starts while {} is in flight", describe(operation), describe(other));
      }
    }
    if (static_cast<int>(started.size()) > limit) {
      return fmt::format("{} exchanges are in flight at {}, the limit is {}", started.size(),
                         describe(operation), limit);
    }
  }
  if (exchanges.started().empty()) return {};
  return fmt::format("{} is never completed", describe(exchanges.started().front()));
}

namespace {

// The constraints of a training step.
class StepConstraints : public Constraints {
 public:
  explicit StepConstraints(const StepShape& shape) : shape_(shape) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      Operation at = OfForward(m);
      at = OfBackward(m, at);
      if (m > 0) Before(end_of_backward_.back(), begin_of_backward_.back());
      if (m > 0 && shape.last()) Before(end_of_backward_.back(), heads_);
      end_of_backward_.push_back(at);
    }
    OfSums();
  }

 private:
  static Operation Of(Kind kind, int m) { return {.kind = kind, .micro_batch = m}; }
  static Operation OfWeights(int m, int layer) {
    return {.kind = Kind::kWeights, .micro_batch = m, .layer = layer};
  }
  bool SeparateWeights() const { return shape_.order == Order::kZeroBubble; }

  // Adds the forward pass of micro-batch m. Returns its last operation.
  Operation OfForward(int m) {
    Operation at = Add(Of(Kind::kBegin, m));
    if (!shape_.first()) at = After(at, Of(Kind::kReceive, m));
    for (int layer = 0; layer < shape_.layers(); ++layer) {
      at = Layer(at, {Kind::kForward, m, layer, Phase::kAttention}, Phase::kDispatch,
                 Phase::kFinish, ForwardPhases(shape_.experts[layer]));
    }
    heads_ = Of(Kind::kHeads, m);
    return After(at, shape_.last() ? heads_ : Of(Kind::kSend, m));
  }

  Operation OfBackward(int m, Operation at) {
    const Operation finish{Kind::kBackward, m, shape_.layers() - 1, Phase::kFinish};
    begin_of_backward_.push_back(shape_.last() ? finish : Of(Kind::kReceiveGradient, m));
    if (!shape_.last()) at = After(at, Of(Kind::kReceiveGradient, m));
    for (int layer = shape_.layers() - 1; layer >= 0; --layer) {
      at = Layer(at, {Kind::kBackward, m, layer, Phase::kFinish}, Phase::kFinish, Phase::kAttention,
                 BackwardPhases(shape_.experts[layer]));
    }
    if (!shape_.first()) at = After(at, Of(Kind::kSendGradient, m));
    for (int layer = 0; SeparateWeights() && layer < shape_.layers(); ++layer) {
      const Operation weights = OfWeights(m, layer);
      After({Kind::kBackward, m, layer, Phase::kAttention}, weights);
      if (m > 0) Before(OfWeights(m - 1, layer), weights);
    }
    return at;
  }

  // Adds the phases of a layer in order. Only kShared is not ordered: it may run anywhere between
  // phases `shared_after` and `shared_before`.
  Operation Layer(Operation at, Operation phase, Phase shared_after, Phase shared_before,
                  std::span<const Phase> phases) {
    const auto of = [&](Phase p) {
      phase.phase = p;
      return phase;
    };
    for (const Phase p : phases) {
      if (p == Phase::kShared) {
        Between(of(shared_after), of(p), of(shared_before));
      } else {
        at = After(at, of(p));
      }
    }
    return at;
  }

  void OfSums() {
    const Operation await = Add({.kind = Kind::kAwaitSums});
    for (int layer = Operation::kNone; layer < shape_.layers(); ++layer) {
      const Operation sum = Add({.kind = Kind::kSumGradients, .layer = layer});
      Before(sum, await);
      if (shape_.micro_batches == 0) continue;
      const int m = shape_.micro_batches - 1;
      if (layer == Operation::kNone) {
        Before(end_of_backward_.back(), sum);
      } else {
        Before({Kind::kBackward, m, layer, Phase::kAttention}, sum);
        if (SeparateWeights()) Before(OfWeights(m, layer), sum);
      }
    }
  }

  const StepShape& shape_;
  std::vector<Operation> begin_of_backward_, end_of_backward_;  // [micro-batches]
  Operation heads_;                                             // the last operation kHeads so far
};

// The constraints of a step of serving.
class ServeConstraints : public Constraints {
 public:
  explicit ServeConstraints(const ServeShape& shape) : shape_(shape) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      const Operation begin = Add(Of(shape.range.has_embedding ? Kind::kEmbed : Kind::kReceive, m));
      Operation at = begin;
      for (int layer = 0; layer < shape.range.size(); ++layer) at = Layer(at, m, layer);
      if (shape.range.has_head) at = After(at, Of(Kind::kLogits, m));
      const Operation end = After(at, Of(shape.range.has_head ? Kind::kSample : Kind::kSend, m));
      if (m > 0) Before(Of(begin.kind, m - 1), begin);
      if (m > 0) Before(Of(end.kind, m - 1), end);
    }
  }

 private:
  static Operation Of(Kind kind, int m) { return {.kind = kind, .micro_batch = m}; }

  // Adds a layer of micro-batch m. Returns its last operation.
  Operation Layer(Operation at, int m, int layer) {
    const auto of = [&](Phase phase) { return Operation{Kind::kForward, m, layer, phase}; };
    const bool under_dispatch = SharedUnder(shape_) == Phase::kDispatch;
    for (const Phase phase : LayerPhases(shape_, shape_.moe(layer))) {
      if (phase == Phase::kShared) {
        Between(of(SharedUnder(shape_)), of(phase),
                of(under_dispatch ? Phase::kExperts : Phase::kFinish));
      } else {
        at = After(at, of(phase));
      }
    }
    return at;
  }

  const ServeShape& shape_;
};

// Maximum number of micro-batches in flight. A micro-batch is in flight from kBegin to the end of
// its last operation.
int MaxMicroBatchesInFlight(std::span<const Operation> list) {
  std::map<int, size_t> last;
  for (size_t i = 0; i < list.size(); ++i) last[list[i].micro_batch] = i;
  int under_way = 0, most = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == Kind::kBegin) most = std::max(most, ++under_way);
    if (list[i].micro_batch != Operation::kNone && last[list[i].micro_batch] == i) --under_way;
  }
  return most;
}

}  // namespace

std::string FindScheduleError(const StepShape& shape, std::span<const Operation> list) {
  std::string error = StepConstraints(shape).FindError(list, shape.first_layer);
  if (!error.empty()) return error;
  const int under_way = MaxMicroBatchesInFlight(list);
  if (under_way > MicroBatchSlots(shape)) {
    return fmt::format("{} micro-batches are in flight, the limit is {}", under_way,
                       MicroBatchSlots(shape));
  }
  // In a pair, one exchange of each micro-batch is in flight.
  return FindExchangeError(list, shape.order == Order::kOverlapped ? 2 : 1, shape.first_layer);
}

std::string FindScheduleError(const ServeShape& shape, std::span<const Operation> list) {
  const int first_layer = shape.range.begin;
  std::string error = ServeConstraints(shape).FindError(list, first_layer);
  if (!error.empty()) return error;
  return FindExchangeError(list, shape.micro_batches, first_layer);
}

std::string FindPipelineError(std::span<const std::vector<Operation>> stages, int link_places) {
  const size_t n = stages.size();
  // The micro-batches of messages in flight: forth[i] from stage i to the next stage, back[i] in
  // the other direction.
  std::vector<std::deque<int>> forth(n), back(n);
  std::vector<size_t> at(n, 0);
  std::string fault;
  // `send` and `receive` run the operation if it does not have to wait. They return whether it ran.
  const auto send = [&](std::deque<int>& link, int m) {
    if (static_cast<int>(link.size()) >= link_places) return false;
    link.push_back(m);
    return true;
  };
  const auto receive = [&](std::deque<int>& link, const Operation& o, size_t stage) {
    if (link.empty()) return false;
    if (link.front() != o.micro_batch && fault.empty()) {
      fault = fmt::format("stage {}: {} got micro-batch {}", stage, Describe(o), link.front());
    }
    link.pop_front();
    return true;
  };
  const auto run = [&](size_t stage, const Operation& o) {
    switch (o.kind) {
      case Kind::kSend:
        return send(forth[stage], o.micro_batch);
      case Kind::kReceive:
        return receive(forth[stage - 1], o, stage);
      case Kind::kSendGradient:
        return send(back[stage - 1], o.micro_batch);
      case Kind::kReceiveGradient:
        return receive(back[stage], o, stage);
      default:
        return true;
    }
  };
  for (bool moved = true; moved && fault.empty();) {
    moved = false;
    for (size_t s = 0; s < n; ++s) {
      while (at[s] < stages[s].size() && run(s, stages[s][at[s]])) {
        ++at[s];
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < n && fault.empty(); ++s) {
    if (at[s] == stages[s].size()) continue;
    fault =
        fmt::format("stage {} deadlocks in operation {}: {}", s, at[s], Describe(stages[s][at[s]]));
  }
  for (size_t s = 0; s < n && fault.empty(); ++s) {
    if (!forth[s].empty() || !back[s].empty()) {
      fault = fmt::format("between stages {} and {} a message is never received", s, s + 1);
    }
  }
  return fault;
}

}  // namespace switchyard::schedule
