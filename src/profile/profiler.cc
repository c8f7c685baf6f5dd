#include "profile/profiler.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "profile/options.h"
#include "profile/trace_file.h"

namespace switchyard::profile {

std::string DefaultDirectory() {
  for (const char* name : {"SWITCHYARD_TORCH_PROFILER_DIR", "SGLANG_TORCH_PROFILER_DIR"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "/tmp";
}

std::string NameOfNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return fmt::format("{}.{:03}", ms / 1000, ms % 1000);
}

namespace {

Event EventOf(const SpanInfo& info, int64_t step) {
  return {.name = info.name,
          .bytes = info.bytes,
          .backend = info.backend,
          .step = static_cast<int32_t>(step),
          .layer = info.layer,
          .rows = static_cast<int32_t>(info.rows),
          .columns = static_cast<int32_t>(info.columns),
          .micro_batch = static_cast<int16_t>(info.micro_batch),
          .track = info.track};
}

// The suffixes that SGLang adds to file names.
std::string Suffix(Stage stage) { return stage == Stage::kPrefill ? "-EXTEND" : "-DECODE"; }

const char* StepName(Stage stage) {
  constexpr const char* kNames[kStages] = {"prefill step", "decode step", "training step"};
  return kNames[static_cast<int>(stage)];
}

}  // namespace

Profiler::Profiler(int rank, std::string title, size_t max_events)
    : rank_(rank), title_(std::move(title)), max_events_(max_events) {}

void Profiler::Start(const Options& options) {
  CHECK(!active());
  CheckDirectory(options.dir, rank_);
  options_ = options;
  recorded_ = {};
  generations_.clear();
  finished_.reset();
  buffer_.emplace(max_events_);
  // Removes marks of a cancelled profile.
  for (kernels::DeviceTimer* const timer : {timer_, messages_})
    if (timer != nullptr) timer->Resolve();
}

void Profiler::Cancel() {
  buffer_.reset();
  on_device_.clear();
}

std::optional<Result> Profiler::Stop() {
  if (active()) Finish();
  return std::exchange(finished_, std::nullopt);
}

kernels::DeviceTimer* Profiler::TimerOf(Track track) const {
  if (!options_.device) return nullptr;
  return track == Track::kPass ? timer_ : track == Track::kMessages ? messages_ : nullptr;
}

Profiler::Open Profiler::OpenSpan(const SpanInfo& info) {
  Open open;
  Event event = EventOf(info, steps_ + 1);
  kernels::DeviceTimer* const timer = TimerOf(info.track);
  if (options_.host && (timer == nullptr || info.track == Track::kPass)) {
    event.begin = event.end = SteadyNanoseconds();
    open.host = buffer_->Add(event);
  }
  if (timer != nullptr) {
    if (info.track == Track::kPass) event.track = Track::kDevice;
    open.device = std::ssize(on_device_);
    on_device_.push_back({.event = event, .timer = timer, .begin = timer->Mark()});
  }
  return open;
}

void Profiler::CloseSpan(const Open& open) noexcept {
  if (open.device >= 0) {
    DeviceSpan& span = on_device_[open.device];
    span.end = span.timer->Mark();
  }
  if (open.host != EventBuffer::kFull) (*buffer_)[open.host].end = SteadyNanoseconds();
}

void Profiler::BeginStep() {
  CHECK(!recording_);
  recording_ = active() && steps_ + 1 >= options_.start_step;
  if (!recording_) return;
  step_begin_ = buffer_->position();
  step_on_device_ = on_device_.size();
  step_ = OpenSpan({});
}

void Profiler::CancelStep() noexcept {
  if (!std::exchange(recording_, false)) return;
  RewindStep();
}

void Profiler::RewindStep() noexcept {
  buffer_->Rewind(step_begin_);
  on_device_.resize(step_on_device_);
}

void Profiler::EndStep(Stage stage, int64_t rows, std::vector<uint64_t> generations) {
  ++steps_;
  if (!std::exchange(recording_, false)) return;
  int64_t& recorded = recorded_[static_cast<int>(stage)];
  if (step_.host != EventBuffer::kFull) {
    Event& step = (*buffer_)[step_.host];
    step.name = StepName(stage);
    step.rows = static_cast<int32_t>(rows);
  }
  CloseSpan(step_);
  if (options_.by_stage && recorded == options_.num_steps && recorded > 0) {
    // This stage has all its steps, but the other stage does not.
    RewindStep();
    return;
  }
  for (Event& event : buffer_->since(step_begin_)) event.stage = stage;
  if (step_.host != EventBuffer::kFull) {
    (*buffer_)[step_.host].generations = static_cast<int32_t>(generations_.size());
    generations_.push_back(std::move(generations));
  }
  for (size_t i = step_on_device_; i < on_device_.size(); ++i) on_device_[i].event.stage = stage;
  ++recorded;
  // Waits only after many spans: a wait in every step would keep the host from planning ahead.
  if (on_device_.size() >= kDeviceSpans) ResolveDevice();
  if (AllStepsRecorded()) Finish();
}

void Profiler::ResolveDevice() {
  if (on_device_.empty()) return;
  std::span<const int64_t> of_passes, of_messages;
  if (timer_ != nullptr) of_passes = timer_->Resolve();
  if (messages_ != nullptr) of_messages = messages_->Resolve();
  for (DeviceSpan& span : on_device_) {
    if (span.begin < 0 || span.end < 0) {
      buffer_->Drop();
      continue;
    }
    const std::span<const int64_t> times = span.timer == timer_ ? of_passes : of_messages;
    span.event.begin = times[span.begin];
    span.event.end = times[span.end];
    buffer_->Add(span.event);
  }
  on_device_.clear();
}

bool Profiler::AllStepsRecorded() const {
  if (options_.num_steps == 0) return false;
  const auto [prefill, decode, training] = recorded_;
  if (!options_.by_stage) return prefill + decode + training == options_.num_steps;
  return prefill == options_.num_steps && decode == options_.num_steps;
}

void Profiler::Finish() {
  ResolveDevice();
  Result result{.dropped = buffer_->dropped()};
  std::vector<std::optional<Stage>> stages = {std::nullopt};
  if (options_.by_stage) stages = {Stage::kPrefill, Stage::kDecode};
  for (const std::optional<Stage> stage : stages) {
    const TraceFile file{.path = std::filesystem::path(options_.dir) /
                                 fmt::format("{}-TP-{}{}.trace.json", options_.name, rank_,
                                             stage ? Suffix(*stage) : ""),
                         .profile = options_.name,
                         .rank = rank_,
                         .rank_title = title_,
                         .record_shapes = options_.record_shapes,
                         .dropped = result.dropped,
                         .stage = stage,
                         .generations = generations_};
    try {
      const size_t events = WriteTrace(file, buffer_->events());
      if (events == 0 && stage) continue;
      result.events += static_cast<int64_t>(events);
      result.files.push_back(file.path.string());
      LOG_INFO("profile: {} has {} events, {} were dropped", file.path.string(), events,
               result.dropped);
    } catch (const std::exception& error) {
      LOG_ERROR("profile: {}", error.what());
      result.error = error.what();
    }
  }
  buffer_.reset();
  finished_ = std::move(result);
}

}  // namespace switchyard::profile
