#include "eplb/recorder.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

std::vector<int32_t> LocalToPhysical(const ExpertMap& map, int ep_rank) {
  std::vector<int32_t> physical(map.LocalExperts(ep_rank));
  for (int32_t p = 0; p < map.size(); ++p)
    if (map.Owner(p) == ep_rank) physical[map.LocalId(p)] = p;
  return physical;
}

std::vector<int32_t> Owners(const ExpertMap& map) {
  std::vector<int32_t> owners(map.size());
  for (int32_t p = 0; p < map.size(); ++p) owners[p] = map.Owner(p);
  return owners;
}

}  // namespace

void Validate(const ExpertRecorderOptions& options) {
  const std::string& m = options.mode;
  if (!m.empty() && m != "stat" && m != "stat_approx" && m != "per_pass" && m != "per_token")
    throw Invalid(
        "--expert-distribution-recorder-mode {}: want stat, stat_approx, per_pass or per_token", m);
  if (options.buffer_size < -1 || options.buffer_size == 0)
    throw Invalid(
        "--expert-distribution-recorder-buffer-size {}: want at least 1, or -1 for no limit",
        options.buffer_size);
}

ExpertRecorder::ExpertRecorder(const ExpertRecorderOptions& options,
                               const ExpertRecorderShape& shape, RankComm& comm)
    : options_((Validate(options), options)),
      shape_(shape),
      comm_(comm),
      map_(shape.experts + shape.redundant, comm.mesh.ep(), shape.shared_dispatched,
           comm.mesh.shape().expert_slots),
      physical_(map_.size()),
      by_dispatch_(options.mode == "stat_approx"),
      by_token_(options.mode == "per_token"),
      owner_(Owners(map_)),
      local_to_physical_(LocalToPhysical(map_, comm.mesh.ep_rank())),
      slots_(std::make_shared<std::vector<int32_t>>(static_cast<size_t>(shape.layers) * physical_,
                                                    -1)),
      logical_(static_cast<size_t>(shape.layers) * shape.experts),
      by_rank_(static_cast<size_t>(shape.layers) * comm.mesh.ep()),
      reduced_(by_rank_.size()),
      total_(logical_.size() + by_rank_.size()),
      steps_(options.buffer_size) {}

void ExpertRecorder::OnPlacement(int layer, const ExpertPlacement& placement) {
  layer += shape_.first_layer;
  CHECK_LT(layer, shape_.layers);
  CHECK_EQ(placement.num_physical(), shape_.experts + shape_.redundant);
  auto slots = std::make_shared<std::vector<int32_t>>(*slots_);
  std::ranges::copy(placement.physical_to_logical(),
                    slots->begin() + static_cast<int64_t>(layer) * physical_);
  slots_ = std::move(slots);
}

const ExpertRecorder::OpenPass* ExpertRecorder::Find(uint64_t pass) const {
  const auto it = std::ranges::find_if(open_, [&](const auto& one) { return one->pass == pass; });
  return it == open_.end() ? nullptr : it->get();
}

void ExpertRecorder::OnRoute(uint64_t number, int layer, const RoutedTokens& tokens) {
  OpenPass* pass = Find(number);
  if (!pass) return;
  layer += shape_.first_layer;
  if (!by_dispatch_) {
    int32_t* count = pass->count.data() + static_cast<int64_t>(layer) * physical_;
    for (const int32_t id : tokens.physical)
      if (id >= 0) ++count[id];
  }
  if (!by_token_ || !pass->records) return;
  const int k = shape_.top_k;
  CHECK_LE(tokens.first_row + tokens.tokens, std::ssize(pass->is_own));
  for (int64_t t = 0; t < tokens.tokens; ++t) {
    const int64_t row = tokens.first_row + t;
    pass->is_own[row] = 1;
    std::copy_n(tokens.logical.data() + t * k, k,
                pass->token_ids.data() + (row * shape_.layers + layer) * k);
  }
}

void ExpertRecorder::OnCounts(uint64_t number, int layer, const RoutedCounts& counts) {
  OpenPass* pass = Find(number);
  if (!pass || by_dispatch_) return;
  layer += shape_.first_layer;
  CHECK_LE(std::ssize(counts.physical), physical_);
  int32_t* count = pass->count.data() + static_cast<int64_t>(layer) * physical_;
  for (size_t p = 0; p < counts.physical.size(); ++p) count[p] += counts.physical[p];
}

// Ranks of a MoE-TP group receive the same rows, so only the first of these ranks counts them.
void ExpertRecorder::OnDispatch(uint64_t number, int layer, const GroupedRows& rows) {
  OpenPass* pass = Find(number);
  if (!pass || comm_.mesh.moe_tp_rank() != 0) return;
  layer += shape_.first_layer;
  int32_t* count = pass->count.data() + static_cast<int64_t>(layer) * physical_;
  for (size_t local = 0; local < local_to_physical_.size(); ++local)
    count[local_to_physical_[local]] +=
        rows.offsets.empty() ? rows.counts[local] : rows.offsets[local + 1] - rows.offsets[local];
}

void ExpertRecorder::OnTimes(uint64_t number, const MoeTimes& times) {
  OpenPass* pass = Find(number);
  if (!pass) return;
  pass->times += times;
  pass->timed = true;
}

void ExpertRecorder::BeginPass(uint64_t number, int64_t tokens) {
  CHECK(!Find(number));
  if (!active()) return;
  if (free_.empty()) free_.push_back(std::make_unique<OpenPass>());
  OpenPass& pass = *open_.emplace_back(std::move(free_.back()));
  free_.pop_back();
  pass.pass = number;
  pass.records = recording_;
  pass.slots = slots_;
  pass.count.assign(slots_->size(), 0);
  pass.times = {};
  pass.timed = false;
  if (!by_token_ || !recording_) return;
  pass.token_ids.assign(tokens * shape_.layers * shape_.top_k, -1);
  pass.is_own.assign(tokens, 0);
}

void ExpertRecorder::EndPass(uint64_t number, const PassTokens& tokens) {
  if (const OpenPass* pass = Find(number)) {
    CountPass(*pass);
    if (pass->records) Record(*pass, tokens);
    if (options_.metrics) UpdateBalancedness();
    Close(*pass);
  }
  ++passes_;
}

void ExpertRecorder::AbortPass(uint64_t number) {
  if (const OpenPass* pass = Find(number)) Close(*pass);
}

void ExpertRecorder::Close(const OpenPass& pass) {
  const auto it = std::ranges::find_if(open_, [&](const auto& one) { return one.get() == &pass; });
  free_.push_back(std::move(*it));
  open_.erase(it);
}

// Converts slots to logical experts with the map that was valid when the pass began, because
// experts may move between passes.
void ExpertRecorder::CountPass(const OpenPass& pass) {
  std::ranges::fill(logical_, 0);
  std::ranges::fill(by_rank_, 0);
  const int ranks = comm_.mesh.ep();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const int64_t first = static_cast<int64_t>(layer) * physical_;
    int32_t* logical = logical_.data() + static_cast<int64_t>(layer) * shape_.experts;
    int32_t* by_rank = by_rank_.data() + static_cast<int64_t>(layer) * ranks;
    for (int p = 0; p < physical_; ++p) {
      const int32_t count = pass.count[first + p];
      if (count == 0) continue;
      by_rank[owner_[p]] += count;
      if (const int32_t id = (*pass.slots)[first + p]; id >= 0) logical[id] += count;
    }
  }
  for (size_t i = 0; i < logical_.size(); ++i) total_[i] += logical_[i];
  for (size_t i = 0; i < by_rank_.size(); ++i) total_[logical_.size() + i] += by_rank_[i];
  total_times_ += pass.times;
  timed_passes_ += pass.timed ? 1 : 0;
  ++counted_passes_;
}

void ExpertRecorder::Record(const OpenPass& pass, const PassTokens& tokens) {
  RecordedStep& step = steps_.Append();
  step.pass = passes_;
  step.logical = logical_;
  if (by_token_) RecordTokens(pass, tokens, &step);
}

void ExpertRecorder::RecordTokens(const OpenPass& pass, const PassTokens& tokens,
                                  RecordedStep* step) const {
  const int64_t width = int64_t{shape_.layers} * shape_.top_k;
  int32_t row = 0;
  for (size_t s = 0; s < tokens.rows.size(); ++s) {
    for (const int32_t end = row + tokens.rows[s]; row < end; ++row) {
      if (!pass.is_own[row]) continue;
      step->rows.push_back(row);
      step->positions.push_back(tokens.positions[row]);
      step->request_ids.push_back(static_cast<int64_t>(tokens.request_ids[s]));
      step->topk_ids.insert(step->topk_ids.end(), pass.token_ids.begin() + row * width,
                            pass.token_ids.begin() + (row + 1) * width);
    }
  }
}

// A rank's rows of one layer and pass are far fewer than 2^24, so float32 sums are exact.
void ExpertRecorder::UpdateBalancedness() {
  std::ranges::copy(by_rank_, reduced_.begin());
  comm_.tp->AllReduceSum(reduced_.data(), reduced_.size());
  const Mesh& mesh = comm_.mesh;
  if (mesh.tp_rank() != 0) return;
  BalancednessSum sum{.pass = passes_};
  if (!mesh.first_stage()) lane_->Receive(std::as_writable_bytes(std::span(&sum, 1)));
  CHECK_EQ(sum.pass, passes_);
  const std::vector<int64_t> loads(reduced_.begin(), reduced_.end());
  sum.Add(loads, mesh.ep());  // the counts of other stages' layers are 0
  if (mesh.pp() == 1) return Log(sum);
  lane_->Send(std::as_bytes(std::span(&sum, 1)));
  TakeSums();
}

void ExpertRecorder::TakeSums() {
  if (!options_.metrics || comm_.mesh.rank() != 0 || comm_.mesh.pp() == 1) return;
  while (lane_->Arrived()) {
    BalancednessSum sum;
    lane_->Receive(std::as_writable_bytes(std::span(&sum, 1)));
    Log(sum);
  }
}

void ExpertRecorder::Log(const BalancednessSum& sum) {
  windows_.Add(sum.Mean());
  LOG_INFO("{}", BalancednessLine(sum.pass, windows_.Get(), sum.rows));
}

bool ExpertRecorder::Start() {
  if (options_.mode.empty())
    throw Invalid(
        "recording experts requires --expert-distribution-recorder-mode: want stat, stat_approx, "
        "per_pass or per_token");
  steps_.Clear();
  return !std::exchange(recording_, true);
}

bool ExpertRecorder::Stop() {
  if (options_.mode.empty())
    throw Invalid(
        "recording experts requires --expert-distribution-recorder-mode: want stat, stat_approx, "
        "per_pass or per_token");
  return std::exchange(recording_, false);
}

ExpertLoad ExpertRecorder::Load() {
  std::vector<int64_t> all(total_.size() * comm_.all().size());
  comm_.all().AllGather(total_.data(), all.data(), total_.size() * sizeof total_[0]);
  const std::array mine = {total_times_.dispatch, total_times_.experts, total_times_.combine};
  std::vector<int64_t> times(mine.size() * comm_.all().size());
  comm_.all().AllGather(mine.data(), times.data(), sizeof mine);
  TakeSums();  // of all passes so far, because the last stage has sent them before
  if (comm_.mesh.rank() != 0) return {};
  if (std::ranges::all_of(times, [](int64_t time) { return time == 0; })) times.clear();
  std::vector<int64_t> sum(total_.size());
  for (size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
  const auto end_of_logical = sum.begin() + std::ssize(logical_);
  return {.layers = shape_.layers,
          .experts = shape_.experts,
          .ranks = comm_.mesh.ep(),
          .passes = counted_passes_,
          .recording = recording_,
          .balancedness = windows_.Get(),
          .rank_count = {end_of_logical, sum.end()},
          .logical_count = {sum.begin(), end_of_logical},
          .stage_times = std::move(times),
          .timed_passes = timed_passes_};
}

}  // namespace switchyard
