// The time of a step of an engine, operation by operation: a discrete event simulation of all its
// ranks and links.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "plan/shared_link.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

// An operation of a rank, in seconds from the start of the step.
struct OperationSpan {
  int rank = 0;
  schedule::Operation operation;
  double start = 0, seconds = 0;
};

// Every rank executes the engine's list of operations (StepCosts::Program) with the costs of its
// group's shape. A rank computes one operation at a time. Meanwhile it sends one exchange at a
// time, in order of their operations. It waits
//   - for all ranks of its EP group to have sent, before an operation that consumes an exchange;
//   - for the ranks of a collective to arrive, which then takes the same time on all of them.
// A rank has its own link to its host (NVLink). Ranks that use the same NIC share it by fair share.
// With ExpertShares, each rank exchanges and computes the rows of its own experts.
// Single-threaded; borrows the costs.
class EngineStep {
 public:
  EngineStep(const StepCosts& prefill, const StepCosts& decode);

  // Returns the seconds of a step. `groups` [dp]: the shapes of the attention groups, all with the
  // same `decode` and `mean_rows`. Appends the operations of all ranks to *spans, if it is not
  // null, in order of their ends on each rank. `loads`: the shares of the ranks of an EP group;
  // null: all are equal, and those of Routing.
  double Run(std::span<const StepShape> groups, std::vector<OperationSpan>* spans = nullptr,
             const ExpertShares* loads = nullptr);

 private:
  using Phase = schedule::Phase;
  static constexpr size_t kPhases = static_cast<size_t>(Phase::kFinish) + 1;

  // Seconds and bytes of a phase.
  struct PhaseTime {
    double compute = 0;     // without collectives
    double collective = 0;  // seconds after the last rank has arrived
    double transfer = 0;    // of an exchange, if it has the links alone
    StepCosts::Sent sent;
  };
  using Phases = std::array<PhaseTime, kPhases>;
  using Times = std::array<Phases, 2>;  // [MoE][phase]

  struct OneSend {
    int64_t exchange;
    double begin;  // not before
    StepCosts::Sent sent;
  };
  struct Rank {
    size_t next = 0;  // index of the next operation
    double clock = 0;
    bool arrived = false;       // has passed the collective of the next operation
    double start = 0;           // when the next operation started
    std::deque<OneSend> sends;  // the first one is in progress
    int flows = 0;              // its transfers that have not ended
  };
  // Ranks that have to arrive at the same point: an exchange of an EP group, or a collective.
  struct Meeting {
    int missing = 0;
    double time = 0;  // of the last one
    std::vector<int> waiting;
  };
  struct Event {
    double time;
    uint64_t order;  // events of equal time: in order of creation
    int link;
    uint64_t version;  // of the link; an end is void if the link has changed since
    int64_t transfer;  // kNone: the end of a transfer; else the rank whose `bytes` start
    double bytes;
    bool operator>(const Event& o) const {
      return time != o.time ? time > o.time : order > o.order;
    }
  };
  static constexpr int64_t kNone = -1;

  PhaseTime TimeOf(const StepShape& shape, bool moe, Phase phase, bool split) const;
  Times TimesOf(const StepShape& shape, bool split) const;
  void Prepare(std::span<const StepShape> groups);
  // Sets of_loads_: the costs of the phases that depend on the rows of experts.
  void PrepareLoads(const ExpertShares& loads, std::span<const StepShape> parts, bool split);
  void Advance(int rank);
  // Whether the rank may pass the collective of its next operation now.
  bool Meet(int rank, const PhaseTime& time);
  void Send(int rank, size_t operation, const PhaseTime& time, double begin, double earliest_end);
  void StartSend(int rank, double time);
  void EndSend(int64_t meeting, double time);
  void Push(double time, int link, int64_t transfer, double bytes);
  void Watch(int link);
  void Handle(const Event& event);
  const PhaseTime& TimeOf(int rank, const schedule::Operation& operation) const;
  bool OfWorld(const schedule::Operation& operation) const;
  int NicOf(int rank) const {  // index in links_
    const int nics = costs_->ranks().nics;
    return tp_ + rank / ranks_of_host_ * nics + rank % ranks_of_host_ % nics;
  }
  int EpGroup(int rank) const { return rank % (tp_ / ep_); }
  int64_t Exchange(int rank, size_t operation) const {
    return static_cast<int64_t>(operation) * (tp_ / ep_) + EpGroup(rank);
  }

  const StepCosts &prefill_, &decode_;
  const int tp_, ep_, dp_, ranks_of_host_;
  const StepCosts* costs_ = nullptr;  // of this step
  const std::vector<schedule::Operation>* program_ = nullptr;
  std::vector<int> began_;    // [operations] index of the exchange that it consumes; −1: none
  std::vector<int> sends_;    // [operations] index of the combine that a `down` sends; −1: none
  std::vector<Times> times_;  // [dp]
  // With ExpertShares: [layers, tp] entries of by_share_; null in dense layers.
  std::vector<const Phases*> of_loads_;
  std::map<std::pair<int, double>, Phases> by_share_;  // by group and StepShape::expert_share
  const ExpertShares* loads_ = nullptr;
  std::vector<Rank> ranks_;  // [tp]
  std::vector<int> ready_;   // ranks to advance
  std::vector<Meeting> exchanges_, collectives_;
  std::vector<SharedLink> links_;  // [tp] to the host, then [hosts, nics]
  std::vector<uint64_t> versions_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  std::vector<OperationSpan>* spans_ = nullptr;
};

}  // namespace switchyard::plan
