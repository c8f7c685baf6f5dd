// Events of a profile, and their file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace switchyard::profile {

// Buffer of fixed size for the events of a profile.

enum class Stage : uint8_t { kPrefill, kDecode, kTraining };
constexpr int kStages = 3;

// Rows of the trace viewer. Two events of one track are either nested or disjoint.
enum class Track : uint8_t {
  kSteps,   // the rank engine: steps and their parts
  kPass,    // a pass on the host: one track for each micro-batch
  kDevice,  // a pass on the stream of a GPU: one track for each micro-batch
  // Messages to other ranks: on the stream of messages of a GPU, which runs beside that of the
  // passes; else on the host.
  kMessages,
};

// An operation of kDevice in which the stream waits for messages and computes nothing.
constexpr const char* kWait = "wait for messages";

struct Event {
  static constexpr int kNone = -1;

  const char* name = "";          // in static storage; has no characters that JSON escapes
  int64_t begin = 0, end = 0;     // nanoseconds of steady_clock
  int64_t bytes = kNone;          // of a message
  const char* backend = nullptr;  // same requirements as `name`; null: no backend
  int32_t step = 0;             // number of the forward pass, counted from the start of the server
  int32_t layer = kNone;        // index in the model
  int32_t rows = kNone;         // number of input rows in this rank's attention group
  int32_t columns = kNone;      // width of an input row
  int32_t generations = kNone;  // of a step: index in TraceFile::generations
  int16_t micro_batch = kNone;  // set for kPass and kDevice
  Track track = Track::kSteps;
  Stage stage = Stage::kPrefill;  // stage of the step
};

// Stores the first `capacity` events and counts the number of further ones. Allocates once. Used by
// one thread at a time.
class EventBuffer {
 public:
  static constexpr int64_t kFull = -1;

  explicit EventBuffer(size_t capacity) : capacity_(capacity) { events_.reserve(capacity); }

  // Stores an event and returns its index. Returns kFull if the buffer is full.
  int64_t Add(const Event& event) {
    if (events_.size() == capacity_) {
      ++dropped_;
      return kFull;
    }
    events_.push_back(event);
    return static_cast<int64_t>(events_.size()) - 1;
  }
  void Drop() { ++dropped_; }  // counts an event whose times are unknown
  Event& operator[](int64_t index) { return events_[index]; }

  // A state of the buffer. Rewind restores it: removes the events that were added later, and
  // subtracts the drops that were counted later.
  struct Position {
    size_t events = 0;
    int64_t dropped = 0;
  };
  Position position() const { return {events_.size(), dropped_}; }
  void Rewind(const Position& to) {
    events_.resize(to.events);
    dropped_ = to.dropped;
  }

  std::span<Event> since(const Position& from) { return std::span(events_).subspan(from.events); }
  std::span<const Event> events() const { return events_; }
  int64_t dropped() const { return dropped_; }

 private:
  size_t capacity_;
  std::vector<Event> events_;
  int64_t dropped_ = 0;
};

// Writes events as a Chrome trace, the format that Perfetto and chrome://tracing read.

// A trace file of one rank.
struct TraceFile {
  std::filesystem::path path;
  std::string profile;         // name of the profile
  int rank = 0;                // pid of all events
  std::string rank_title;      // "TP1 EP1"
  bool record_shapes = false;  // whether events have "Input Dims", as in traces of PyTorch
  int64_t dropped = 0;         // number of events that the buffer dropped
  std::optional<Stage> stage;  // if set, the file has only the events of this stage
  // For each recorded step, the ids of the generations in its batch (EngineRequest::id).
  std::span<const std::vector<uint64_t>> generations;
};

// Writes one JSON object with traceEvents, in the order in which the events begin, outer events
// first. Times are microseconds of the host's steady_clock, so files of ranks on one host share a
// time axis. The file gets its final name when it is complete. Returns the number of events
// written. If there are no events of the stage, writes no file. Error kResource names the file.
size_t WriteTrace(const TraceFile& file, std::span<const Event> events);

// Error kInvalid if `dir` cannot be created, or if no file can be created in it.
void CheckDirectory(const std::filesystem::path& dir, int rank);

}  // namespace switchyard::profile
