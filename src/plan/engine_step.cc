#include "plan/engine_step.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard::plan {

using schedule::Kind;
using schedule::Operation;

EngineStep::EngineStep(const StepCosts& prefill, const StepCosts& decode)
    : prefill_(prefill),
      decode_(decode),
      tp_(prefill.ranks().mesh.tp),
      ep_(prefill.ranks().mesh.ep),
      dp_(prefill.ranks().mesh.dp),
      ranks_of_host_(prefill.ranks().ranks_of_host) {}

namespace {

// Whether the time of a phase depends on the rows of the rank's experts.
bool HasExpertRows(schedule::Phase phase) {
  using schedule::Phase;
  return phase == Phase::kDispatch || phase == Phase::kExperts || phase == Phase::kDown ||
         phase == Phase::kCombine;
}

}  // namespace

EngineStep::PhaseTime EngineStep::TimeOf(const StepShape& shape, bool moe, Phase phase,
                                         bool split) const {
  const StepCosts::PhaseCost cost = costs_->Of(shape, moe, phase, split);
  const double collective = cost.compute.parts[static_cast<size_t>(Part::kCollectives)];
  return {.compute = cost.compute.sum() - collective,
          .collective = collective,
          .transfer = cost.transfer.sum(),
          .sent = cost.sent};
}

EngineStep::Times EngineStep::TimesOf(const StepShape& shape, bool split) const {
  Times times;
  for (const bool moe : {false, true}) {
    if (moe && !costs_->model().has_moe()) continue;
    for (size_t p = 0; p < kPhases; ++p) {
      const auto phase = static_cast<Phase>(p);
      if (!moe && phase != Phase::kQkv && phase != Phase::kAttention && phase != Phase::kExperts)
        continue;
      times[moe][p] = TimeOf(shape, moe, phase, split);
    }
  }
  return times;
}

void EngineStep::PrepareLoads(const ExpertShares& loads, std::span<const StepShape> parts,
                              bool split) {
  CHECK(loads.ranks == ep_);
  by_share_.clear();
  const std::vector<LayerConfig>& layers = costs_->model().layers;
  of_loads_.assign(layers.size() * tp_, nullptr);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!layers[layer].moe) continue;
    const double variation = costs_->Variation(parts.front(), loads, static_cast<int>(layer));
    const std::span<const float> shares = loads.Layer(static_cast<int>(layer));
    for (int rank = 0; rank < tp_; ++rank) {
      const int group = rank / (tp_ / dp_);
      StepShape shape = parts[group];
      shape.expert_share = StepCosts::WithVariation(shares[rank / (tp_ / ep_)], variation);
      const auto [known, added] = by_share_.try_emplace({group, shape.expert_share});
      for (size_t p = 0; added && p < kPhases; ++p)
        if (const auto phase = static_cast<Phase>(p); HasExpertRows(phase))
          known->second[p] = TimeOf(shape, true, phase, split);
      of_loads_[layer * tp_ + rank] = &known->second;
    }
  }
}

void EngineStep::Prepare(std::span<const StepShape> groups) {
  CHECK(std::ssize(groups) == dp_);
  costs_ = groups.front().decode ? &decode_ : &prefill_;
  StepShape mean = groups.front();
  if (mean.mean_rows > 0) mean.rows = mean.mean_rows;
  const bool two = costs_->TwoBatches(mean);
  program_ = &costs_->Program(two, mean.decode);
  const bool split = std::ranges::any_of(*program_, [](const Operation& operation) {
    return operation.kind == Kind::kForward && operation.phase == Phase::kQkv;
  });
  std::vector<StepShape> parts(groups.begin(), groups.end());
  times_.clear();
  for (StepShape& part : parts) {
    if (two) part = costs_->PartOf(part);
    times_.push_back(TimesOf(part, split));
  }
  of_loads_.clear();
  if (loads_ && costs_->model().has_moe()) PrepareLoads(*loads_, parts, split);
  began_.assign(program_->size(), -1);
  sends_.assign(program_->size(), -1);
  std::array<int, 2> begun = {-1, -1}, combine = {-1, -1};  // of each micro-batch
  for (size_t i = 0; costs_->exchanges() && i < program_->size(); ++i) {
    const Operation& operation = (*program_)[i];
    if (operation.kind != Kind::kForward || !costs_->model().layers[operation.layer].moe) continue;
    const int batch = operation.micro_batch;
    if (EndsExchange(operation)) began_[i] = begun[batch];
    if (BeginsExchange(operation)) begun[batch] = static_cast<int>(i);
    if (operation.phase == Phase::kCombine) combine[batch] = static_cast<int>(i);
    if (operation.phase == Phase::kDown) sends_[i] = combine[batch];
  }
  ranks_.assign(tp_, {});
  const size_t ep_groups = tp_ / ep_;
  exchanges_.resize(std::max(exchanges_.size(), program_->size() * ep_groups));
  for (Meeting& meeting : exchanges_) {
    meeting.missing = 2 * ep_;  // each rank sends to ranks of its host, and to others
    meeting.time = 0;
  }
  // The collectives of an operation: those of the groups, and that of all ranks.
  collectives_.resize(std::max(collectives_.size(), program_->size() * (dp_ + 1)));
  for (size_t i = 0; i < collectives_.size(); ++i) {
    const bool of_world = static_cast<int>(i) % (dp_ + 1) == dp_;
    collectives_[i].missing = of_world ? tp_ : tp_ / dp_;
    collectives_[i].time = 0;
  }
  const int hosts = (tp_ + ranks_of_host_ - 1) / ranks_of_host_, nics = costs_->ranks().nics;
  links_.assign(tp_, SharedLink(std::max(1.0, costs_->table().host.rate)));
  links_.resize(tp_ + hosts * nics, SharedLink(std::max(1.0, costs_->nic_rate() / nics)));
  versions_.assign(links_.size(), 0);
  order_ = 0;
}

double EngineStep::Run(std::span<const StepShape> groups, std::vector<OperationSpan>* spans,
                       const ExpertShares* loads) {
  loads_ = loads;
  Prepare(groups);
  spans_ = spans;
  for (int rank = tp_ - 1; rank >= 0; --rank) ready_.push_back(rank);
  while (true) {
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      Advance(rank);
    }
    if (events_.empty()) break;
    const Event event = events_.top();
    events_.pop();
    Handle(event);
  }
  double last = 0, ends = 0;
  for (const Rank& rank : ranks_) {
    CHECK(rank.next == program_->size());
    last = std::max(last, rank.clock);
  }
  for (const StepShape& group : groups) ends = std::max(ends, costs_->Ends(group).sum());
  return last + ends;
}

const EngineStep::PhaseTime& EngineStep::TimeOf(int rank, const Operation& operation) const {
  const bool moe = costs_->model().layers[operation.layer].moe;
  if (!of_loads_.empty() && moe && HasExpertRows(operation.phase))
    return (*of_loads_[operation.layer * tp_ + rank])[static_cast<size_t>(operation.phase)];
  return times_[rank / (tp_ / dp_)][moe][static_cast<size_t>(operation.phase)];
}

// Whether a collective of the operation is one of all ranks, and not of an attention group.
bool EngineStep::OfWorld(const Operation& operation) const {
  if (operation.phase == Phase::kQkv || operation.phase == Phase::kAttention) return false;
  const bool moe = costs_->model().layers[operation.layer].moe;
  return moe ? !costs_->exchanges() : costs_->ranks().mesh.dense_tp != 1;
}

// Runs a rank until it has to wait.
void EngineStep::Advance(int rank) {
  Rank& r = ranks_[rank];
  for (; r.next < program_->size(); ++r.next) {
    const Operation& operation = (*program_)[r.next];
    if (operation.kind != Kind::kForward) {  // their costs are those of the step's ends
      if (spans_) spans_->push_back({.rank = rank, .operation = operation, .start = r.clock});
      continue;
    }
    const PhaseTime& time = TimeOf(rank, operation);
    if (!r.arrived) {
      r.start = r.clock;
      if (const int began = began_[r.next]; began >= 0) {
        Meeting& exchange = exchanges_[Exchange(rank, began)];
        if (exchange.missing > 0) {
          exchange.waiting.push_back(rank);
          return;
        }
        r.clock = r.start = std::max(r.clock, exchange.time);
      }
      r.clock += time.compute;
      if (time.collective > 0 && !Meet(rank, time)) return;
    }
    r.arrived = false;
    if (operation.phase == Phase::kDown && sends_[r.next] >= 0) {
      const PhaseTime& combine = TimeOf(rank, (*program_)[sends_[r.next]]);
      // The first part leaves as soon as it is computed, and the last part after all of them.
      Send(rank, sends_[r.next], combine, r.start + time.compute / StepCosts::kCombineParts,
           r.clock + combine.transfer / StepCosts::kCombineParts);
    } else if (time.transfer > 0 &&
               !(operation.phase == Phase::kCombine && costs_->down_under_combine())) {
      Send(rank, r.next, time, r.clock, r.clock);
    }
    if (spans_)
      spans_->push_back(
          {.rank = rank, .operation = operation, .start = r.start, .seconds = r.clock - r.start});
  }
}

bool EngineStep::Meet(int rank, const PhaseTime& time) {
  const Operation& operation = (*program_)[ranks_[rank].next];
  const int group = OfWorld(operation) ? dp_ : rank / (tp_ / dp_);
  Meeting& meeting = collectives_[ranks_[rank].next * (dp_ + 1) + group];
  meeting.time = std::max(meeting.time, ranks_[rank].clock);
  meeting.waiting.push_back(rank);
  if (--meeting.missing > 0) return false;
  for (const int other : meeting.waiting) {
    ranks_[other].clock = meeting.time + time.collective;
    ranks_[other].arrived = true;
    if (other != rank) ready_.push_back(other);
  }
  meeting.waiting.clear();
  return true;
}

// A rank that copies rows itself is busy until they are sent.
void EngineStep::Send(int rank, size_t operation, const PhaseTime& time, double begin,
                      double earliest_end) {
  const int64_t exchange = Exchange(rank, operation);
  Meeting& meeting = exchanges_[exchange];
  if (!costs_->table().exchange_overlaps) {
    ranks_[rank].clock += time.transfer;
    earliest_end = ranks_[rank].clock;
  }
  meeting.time = std::max(meeting.time, earliest_end);
  if (!costs_->table().exchange_overlaps) {
    for (int i = 0; i < 2; ++i) EndSend(exchange, earliest_end);
    return;
  }
  std::deque<OneSend>& sends = ranks_[rank].sends;
  sends.push_back({.exchange = exchange, .begin = begin, .sent = time.sent});
  if (sends.size() == 1) StartSend(rank, begin);
}

void EngineStep::StartSend(int rank, double time) {
  Rank& r = ranks_[rank];
  while (!r.sends.empty()) {
    const OneSend send = r.sends.front();
    time = std::max(time, send.begin) + send.sent.start;
    for (const auto& [link, bytes] :
         {std::pair{rank, send.sent.near}, std::pair{NicOf(rank), send.sent.far}}) {
      if (bytes > 0) {
        Push(time, link, rank, bytes);
        ++r.flows;
      } else {
        EndSend(send.exchange, time);
      }
    }
    if (r.flows > 0) return;
    r.sends.pop_front();
  }
}

void EngineStep::EndSend(int64_t exchange, double time) {
  Meeting& meeting = exchanges_[exchange];
  meeting.time = std::max(meeting.time, time);
  if (--meeting.missing > 0) return;
  ready_.insert(ready_.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
}

void EngineStep::Push(double time, int link, int64_t transfer, double bytes) {
  events_.push({.time = time,
                .order = order_++,
                .link = link,
                .version = versions_[link],
                .transfer = transfer,
                .bytes = bytes});
}

// Adds an event for the next end of a transfer, after a change of the link.
void EngineStep::Watch(int link) {
  ++versions_[link];
  const double end = links_[link].NextEnd();
  if (end < std::numeric_limits<double>::infinity()) Push(end, link, kNone, 0);
}

void EngineStep::Handle(const Event& event) {
  SharedLink& link = links_[event.link];
  if (event.transfer != kNone) {
    link.Start(event.time, event.bytes, event.transfer);
  } else if (event.version == versions_[event.link]) {
    const auto rank = static_cast<int>(link.End(event.time));
    Rank& r = ranks_[rank];
    EndSend(r.sends.front().exchange, event.time);
    if (--r.flows == 0) {
      r.sends.pop_front();
      StartSend(rank, event.time);
    }
  } else {
    return;
  }
  Watch(event.link);
}

}  // namespace switchyard::plan
