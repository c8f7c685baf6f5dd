#include "profile/trace_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"

namespace switchyard::profile {
namespace {

// Thread ids in the viewer; Perfetto reserves thread 0. The index of the micro-batch is added to
// the ids of passes; it is far below 100.
constexpr int kSteps = 1, kFirstPass = 2, kFirstDevice = 102, kMessages = 202;

int ThreadOf(const Event& e) {
  switch (e.track) {
    case Track::kSteps:
      return kSteps;
    case Track::kPass:
      return kFirstPass + e.micro_batch;
    case Track::kDevice:
      return kFirstDevice + e.micro_batch;
    case Track::kMessages:
      return kMessages;
  }
  return kSteps;
}

std::string ThreadName(int thread) {
  if (thread == kSteps) return "steps";
  if (thread == kMessages) return "messages";
  if (thread < kFirstDevice) return fmt::format("pass {}", thread - kFirstPass);
  return fmt::format("pass {} on the GPU", thread - kFirstDevice);
}

const char* Category(Track track) {
  constexpr const char* kNames[] = {"step", "operation", "gpu_operation", "message"};
  return kNames[static_cast<int>(track)];
}

std::string Microseconds(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

// Returns an event that sets the name of a process or a thread in the viewer.
std::string Metadata(const char* name, int rank, int thread, const nlohmann::json& args) {
  return nlohmann::json(
             {{"name", name}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", args}})
      .dump();
}

std::vector<std::string> Descriptions(const TraceFile& file, std::span<const Event> events) {
  std::vector<std::string> lines = {
      Metadata("process_name", file.rank, 0,
               {{"name", fmt::format("rank {} ({})", file.rank, file.rank_title)}}),
      Metadata("process_sort_index", file.rank, 0, {{"sort_index", file.rank}})};
  if (file.dropped > 0)
    lines.push_back(Metadata("process_labels", file.rank, 0,
                             {{"labels", fmt::format("{} events dropped", file.dropped)}}));
  std::set<int> threads;
  for (const Event& e : events) threads.insert(ThreadOf(e));
  for (const int thread : threads) {
    lines.push_back(Metadata("thread_name", file.rank, thread, {{"name", ThreadName(thread)}}));
    lines.push_back(Metadata("thread_sort_index", file.rank, thread, {{"sort_index", thread}}));
  }
  return lines;
}

// Appends an event as JSON. Does not use nlohmann/json, which would be slow: a trace has hundreds
// of thousands of events.
void AppendEvent(const TraceFile& file, const Event& e, std::string& to) {
  fmt::format_to(
      std::back_inserter(to),
      R"({{"name":"{}","cat":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{{"step":{})",
      e.name, Category(e.track), Microseconds(e.begin),
      Microseconds(std::max<int64_t>(0, e.end - e.begin)), file.rank, ThreadOf(e), e.step);
  const auto add = [&](const char* name, int64_t value) {
    if (value != Event::kNone) fmt::format_to(std::back_inserter(to), R"(,"{}":{})", name, value);
  };
  add("layer", e.layer);
  add("micro_batch", e.micro_batch);
  add("rows", e.rows);
  add("bytes", e.bytes);
  if (e.generations != Event::kNone)
    fmt::format_to(std::back_inserter(to), R"(,"generations":[{}])",
                   fmt::join(file.generations[e.generations], ","));
  if (e.backend != nullptr) fmt::format_to(std::back_inserter(to), R"(,"backend":"{}")", e.backend);
  if (file.record_shapes && e.columns != Event::kNone)
    fmt::format_to(std::back_inserter(to), R"(,"Input Dims":[[{},{}]])", e.rows, e.columns);
  to += "}}";
}

// Writes the header, the names of process and threads, and the events. Errors appear in the state
// of `out`.
void Write(const TraceFile& file, std::span<const Event> events, std::ostream& out) {
  constexpr size_t kChunk = size_t{1} << 20;
  const nlohmann::json other = {{"profile", file.profile},
                                {"rank", file.rank},
                                {"dropped_events", file.dropped},
                                {"clock", "steady_clock of the rank's host"}};
  out << R"({"displayTimeUnit":"ms","otherData":)" << other.dump() << R"(,"traceEvents":[)";
  std::string text;
  bool first = true;
  const auto separate = [&] {
    text += first ? "\n" : ",\n";
    first = false;
  };
  for (const std::string& line : Descriptions(file, events)) {
    separate();
    text += line;
  }
  for (const Event& e : events) {
    separate();
    AppendEvent(file, e, text);
    if (text.size() < kChunk) continue;
    out << text;
    text.clear();
  }
  out << text << "\n]}\n";
}

std::string Reason() { return errno != 0 ? std::strerror(errno) : "output error"; }

}  // namespace

size_t WriteTrace(const TraceFile& file, std::span<const Event> events) {
  std::vector<Event> sorted;
  for (const Event& e : events)
    if (!file.stage || e.stage == *file.stage) sorted.push_back(e);
  if (sorted.empty() && file.stage) return 0;
  std::ranges::stable_sort(sorted, {}, [](const Event& e) { return std::tuple(e.begin, -e.end); });

  const std::filesystem::path part = file.path.string() + ".part";
  errno = 0;
  std::ofstream out(part);
  Write(file, sorted, out);
  out.close();
  std::error_code error;
  if (!out) {
    const std::string reason = Reason();
    std::filesystem::remove(part, error);
    throw Resource("{}: cannot be written: {}", file.path.string(), reason);
  }
  std::filesystem::rename(part, file.path, error);
  if (error) throw Resource("{}: cannot be written: {}", file.path.string(), error.message());
  return sorted.size();
}

void CheckDirectory(const std::filesystem::path& dir, int rank) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) throw Invalid("{} cannot be created: {}", dir.string(), error.message());
  const std::filesystem::path probe = dir / fmt::format(".switchyard-profile-{}", rank);
  errno = 0;
  if (!std::ofstream(probe)) throw Invalid("{} cannot be written to: {}", dir.string(), Reason());
  std::filesystem::remove(probe, error);
}

}  // namespace switchyard::profile
