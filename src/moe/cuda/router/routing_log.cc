#include "moe/cuda/router/routing_log.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "moe/runners/runner.h"

namespace switchyard::cuda {
namespace {

size_t WordBytes(int64_t words) { return static_cast<size_t>(words) * sizeof(int32_t); }

int IndexOf(int64_t MoeTimes::*part) {
  if (part == nullptr) return -1;
  return part == &MoeTimes::dispatch ? 0 : part == &MoeTimes::experts ? 1 : 2;
}

}  // namespace

RoutingLog::RoutingLog(RoutingObserver& observer, std::vector<int> layers,
                       const RoutingLogShape& shape, CudaDevice& device)
    : observer_(observer),
      layers_(std::move(layers)),
      shape_(shape),
      device_(device),
      memory_(shape.Bytes()) {
  for (size_t i = 0; i < kMaxPending; ++i)
    copies_.emplace_back(WordBytes(shape.Counts()), WordBytes(shape.Ids()));
  static_assert(sizeof(Head) <= RoutingLogShape::kAlignment * sizeof(int32_t));
  CHECK_EQ(std::ssize(layers_), shape.layers);
}

int32_t* RoutingLog::CountsOf(int index) const {
  return memory_.as<int32_t>() + RoutingLogShape::kAlignment + index * shape_.CountsOfLayer();
}

void RoutingLog::Begin(uint64_t pass, int64_t rows, int64_t first) {
  CHECK_LE(rows, shape_.max_rows);
  observed_ = observer_.needs_pass(pass);
  now_ = {.pass = pass, .rows = observed_ ? rows : 0, .first_row = first};
  const Head head = {.control = {static_cast<int32_t>(now_.rows), observed_ ? 1 : 0}};
  device_.CopyIn(memory_.data(), &head, sizeof head);
  part_ = -1;
  if (!observed_) return;
  if (shape_.Counts() > 0)
    Check(cudaMemsetAsync(CountsOf(0), 0, WordBytes(shape_.Counts()), device_.stream()),
          "clearing of routing counts");
  if (shape_.Ids() > 0 && now_.rows > 0)
    Check(cudaMemset2DAsync(CountsOf(0) + shape_.Counts(), WordBytes(shape_.IdsOfLayer()),
                            kUnreportedByte, WordBytes(now_.rows * shape_.top_k), 2 * shape_.layers,
                            device_.stream()),
          "clearing of routed experts");
}

RoutingRecord RoutingLog::RecordOf(int index, const MoeState& state, const OwnTokens& own,
                                   const int32_t* physical_of) {
  now_.streamed = state.streams;
  RoutingRecord record = {.control = memory_.as<RoutingControl>(),
                          .begin = own.in_round.begin,
                          .end = own.in_round.end,
                          .first_row = state.first_row + own.in_group - now_.first_row,
                          .physical_of = physical_of};
  if (shape_.tokens) {
    record.logical_ids = CountsOf(0) + shape_.Counts() + index * shape_.IdsOfLayer();
    record.physical_ids = record.logical_ids + shape_.layers * shape_.IdsOfLayer();
  } else {
    record.logical_counts = CountsOf(index);
    record.physical_counts = record.logical_counts + shape_.experts;
  }
  return record;
}

void RoutingLog::CountDispatched(int index, const int32_t* counts) const {
  Check(AddDispatched(memory_.as<RoutingControl>(), counts, shape_.local,
                      CountsOf(index) + shape_.experts + shape_.physical, device_.stream()),
        "counts of dispatched rows");
}

void RoutingLog::MarkStage(int64_t MoeTimes::*part) {
  const int begins = IndexOf(part), ends = std::exchange(part_, begins);
  if (begins == ends) return;
  Check(ChangeStage(memory_.as<Head>()->times, ends, begins, device_.stream()),
        "reading of the clock");
}

void RoutingLog::Read(bool clocked) {
  if (!std::exchange(observed_, false)) return;
  CHECK_LT(pending_, kMaxPending);
  Copy& copy = copies_[(oldest_ + pending_++) % kMaxPending];
  copy.of = now_;
  copy.clocked = clocked;
  if (clocked)
    Check(cudaMemcpyAsync(copy.times.as<int64_t>(), memory_.as<Head>()->times, copy.times.bytes(),
                          cudaMemcpyDeviceToHost, device_.stream()),
          "copy of the times of stages");
  if (shape_.Counts() > 0)
    Check(cudaMemcpyAsync(copy.counts.as<int32_t>(), CountsOf(0), copy.counts.bytes(),
                          cudaMemcpyDeviceToHost, device_.stream()),
          "copy of routing counts");
  if (shape_.Ids() > 0 && now_.rows > 0) {
    const size_t width = WordBytes(now_.rows * shape_.top_k);
    Check(cudaMemcpy2DAsync(copy.ids.as<int32_t>(), width, CountsOf(0) + shape_.Counts(),
                            WordBytes(shape_.IdsOfLayer()), width, 2 * shape_.layers,
                            cudaMemcpyDeviceToHost, device_.stream()),
          "copy of routed experts");
  }
  copy.read.Record(device_.stream());
}

void RoutingLog::Report(uint64_t last) {
  while (pending_ > 0 && copies_[oldest_].of.pass <= last) {
    Report(copies_[oldest_]);
    oldest_ = (oldest_ + 1) % kMaxPending;
    --pending_;
  }
}

// Waits, with the device's deadline, until the pass's results are on the host.
void RoutingLog::Report(const Copy& copy) const {
  if (cudaEventQuery(copy.read.get()) != cudaSuccess) {
    cudaGetLastError();  // clears "not ready", which is not an error
    device_.Synchronize();
  }
  if (copy.clocked) {
    const int64_t* times = copy.times.as<int64_t>();
    observer_.OnTimes(copy.of.pass,
                      {.dispatch = times[0], .experts = times[1], .combine = times[2]});
  }
  for (int i = 0; i < shape_.layers; ++i) {
    shape_.tokens ? ReportTokens(copy, i) : ReportCounts(copy, i);
    if (!shape_.dispatch) continue;
    const int32_t* counts = copy.counts.as<int32_t>() + i * shape_.CountsOfLayer();
    GroupedRows rows;
    rows.counts = {counts + shape_.experts + shape_.physical, static_cast<size_t>(shape_.local)};
    observer_.OnDispatch(copy.of.pass, layers_[i], rows);
  }
}

void RoutingLog::ReportCounts(const Copy& copy, int index) const {
  const int32_t* counts = copy.counts.as<int32_t>() + index * shape_.CountsOfLayer();
  observer_.OnCounts(copy.of.pass, layers_[index],
                     {.logical = {counts, static_cast<size_t>(shape_.experts)},
                      .physical = {counts + shape_.experts, static_cast<size_t>(shape_.physical)},
                      .streamed = copy.of.streamed});
}

// Reports the rows of a rank as a few ranges of consecutive rows: one for each round, and for each
// part of a split batch.
void RoutingLog::ReportTokens(const Copy& copy, int index) const {
  const int64_t k = shape_.top_k, rows = copy.of.rows;
  const int32_t* logical = copy.ids.as<int32_t>() + index * rows * k;
  const int32_t* physical = logical + shape_.layers * rows * k;
  const auto is_reported = [&](int64_t row) { return logical[row * k] != kUnreported; };
  for (int64_t row = 0; row < rows;) {
    int64_t end = row;
    while (end < rows && is_reported(end)) ++end;
    const auto words = static_cast<size_t>((end - row) * k);
    if (end > row)
      observer_.OnRoute(copy.of.pass, layers_[index],
                        {.first_row = copy.of.first_row + row,
                         .tokens = end - row,
                         .logical = {logical + row * k, words},
                         .physical = {physical + row * k, words},
                         .streamed = copy.of.streamed});
    row = end + 1;
  }
}

}  // namespace switchyard::cuda
