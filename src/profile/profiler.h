// Records on request how long the parts of a rank's steps take, and writes them as a Chrome trace.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "profile/options.h"
#include "profile/trace_file.h"

namespace switchyard::profile {

// Name and properties of a span in the trace viewer; see Event.
struct SpanInfo {
  const char* name = "";
  // With kPass, a rank on a GPU also records its stream. With kMessages, it records the stream of
  // messages instead of the host.
  Track track = Track::kSteps;
  int micro_batch = Event::kNone;
  int layer = Event::kNone;
  int64_t rows = Event::kNone, columns = Event::kNone;
  const char* backend = nullptr;  // backend that runs the operation; outlives the profile
  int64_t bytes = Event::kNone;   // of a message
};

// One per rank. Must outlive the model and the engine that record with it. Used by the rank's
// thread only. Every rank of the world makes the same calls between the same steps, so profiles
// begin and end with the same step everywhere.
//
// While no step is recorded, a span costs one branch. While one is recorded, it costs two clock
// readings, and on a GPU also two stream events. The rank waits for the device after many spans,
// and at the end of a profile.
class Profiler {
 public:
  // Maximum number of events in one profile, 64 bytes each. Further events are dropped; the file
  // has their number.
  static constexpr size_t kMaxEvents = size_t{1} << 18;
  // Number of spans on the device after which a step ends with a wait for their times.
  static constexpr size_t kDeviceSpans = 4096;

  // `title`: the rank's name in the viewer, such as "TP1 EP1".
  Profiler(int rank, std::string title, size_t max_events = kMaxEvents);

  // Sets the timer of the rank's device. Null: only times on the host are recorded. The timer must
  // outlive its use by the profiler.
  void SetDevice(kernels::DeviceTimer* timer) { timer_ = timer; }
  // The same for the stream of messages, if the device has one.
  void SetMessages(kernels::DeviceTimer* timer) { messages_ = timer; }

  // Starts a profile; none may be active. Error kInvalid if the directory cannot be written to.
  // Steps are recorded from Options::start_step on.
  void Start(const Options& options);
  // Ends the profile without files, if one is active.
  void Cancel();
  // Whether a profile has started and not ended yet.
  bool active() const { return buffer_.has_value(); }
  // Ends the profile and writes its files. If the profile has already ended because of num_steps,
  // the first call returns its result. Nullopt if there is neither a profile nor such a result.
  std::optional<Result> Stop();

  // Whether a step is being recorded.
  bool recording() const { return recording_; }

 private:
  friend class Span;
  friend class Step;

  // A span that is being recorded: the index of its event on the host, and of its entry in
  // `on_device_`.
  struct Open {
    int64_t host = EventBuffer::kFull, device = -1;
  };
  struct DeviceSpan {
    Event event;
    kernels::DeviceTimer* timer = nullptr;
    int begin = -1, end = -1;  // indices of marks in the timer
  };

  Open OpenSpan(const SpanInfo& info);
  void CloseSpan(const Open& open) noexcept;
  void RewindStep() noexcept;
  void BeginStep();
  void EndStep(Stage stage, int64_t rows, std::vector<uint64_t> generations);
  void CancelStep() noexcept;
  kernels::DeviceTimer* TimerOf(Track track) const;
  void ResolveDevice();
  bool AllStepsRecorded() const;
  void Finish();

  const int rank_;
  const std::string title_;
  const size_t max_events_;
  kernels::DeviceTimer *timer_ = nullptr, *messages_ = nullptr;
  int64_t steps_ = 0;  // number of steps that have ended since the server started

  Options options_;                                 // options of the active profile
  std::optional<EventBuffer> buffer_;               // while a profile is active
  std::array<int64_t, kStages> recorded_{};         // number of recorded steps of each stage
  std::vector<std::vector<uint64_t>> generations_;  // of each recorded step
  std::optional<Result> finished_;  // result of a profile that ended because of num_steps

  bool recording_ = false;
  EventBuffer::Position step_begin_;
  Open step_;
  std::vector<DeviceSpan> on_device_;  // spans whose times are still on the device
  size_t step_on_device_ = 0;          // size of on_device_ when the step began
};

// Returns `profiler` if it records a step, otherwise null. Code with many spans uses the result, so
// that each span only tests a pointer.
inline Profiler* IfRecording(Profiler* profiler) {
  return profiler && profiler->recording() ? profiler : nullptr;
}

// Records a span from construction to destruction if `profiler` records a step. `profiler` may be
// null, which records nothing.
class Span {
 public:
  Span(Profiler* profiler, const SpanInfo& info) : profiler_(IfRecording(profiler)) {
    if (profiler_) open_ = profiler_->OpenSpan(info);
  }
  ~Span() {
    if (profiler_) profiler_->CloseSpan(open_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Profiler* const profiler_;
  Profiler::Open open_;
};

// A step of the rank, from construction to End. If End is not called, the step had no forward pass;
// it is discarded and does not count. `profiler` may be null.
class Step {
 public:
  explicit Step(Profiler* profiler) : profiler_(profiler) {
    if (profiler_) profiler_->BeginStep();
  }
  ~Step() {
    if (profiler_) profiler_->CancelStep();
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // `rows`: number of rows in the batch of this rank's attention group. `generations`: ids of the
  // generations in it, which join the trace with spans and logs of requests. The last step of a
  // profile writes the files, which takes a fraction of a second. Errors of files are logged and
  // stored in the result. Errors of the device are thrown.
  void End(Stage stage, int64_t rows, std::vector<uint64_t> generations = {}) {
    if (Profiler* profiler = std::exchange(profiler_, nullptr))
      profiler->EndStep(stage, rows, std::move(generations));
  }

 private:
  Profiler* profiler_;
};

}  // namespace switchyard::profile
