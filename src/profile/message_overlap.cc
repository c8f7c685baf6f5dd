#include "profile/message_overlap.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "profile/trace_file.h"

namespace switchyard::profile {
namespace {

using nlohmann::json;

struct Interval {
  double begin = 0, end = 0;  // microseconds
};
// Disjoint and ascending.
using Intervals = std::vector<Interval>;

Intervals UnionOf(Intervals all) {
  std::ranges::sort(all, {}, &Interval::begin);
  Intervals merged;
  for (const Interval& next : all) {
    if (!merged.empty() && next.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, next.end);
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

// The parts of `from` outside of `without`.
Intervals Difference(const Intervals& from, const Intervals& without) {
  Intervals left;
  auto next = without.begin();
  for (Interval rest : from) {
    while (next != without.end() && next->end <= rest.begin) ++next;
    for (auto at = next; at != without.end() && at->begin < rest.end; ++at) {
      if (at->begin > rest.begin) left.push_back({rest.begin, at->begin});
      rest.begin = std::max(rest.begin, at->end);
    }
    if (rest.begin < rest.end) left.push_back(rest);
  }
  return left;
}

double Length(const Intervals& all) {
  double sum = 0;
  for (const Interval& one : all) sum += one.end - one.begin;
  return sum;
}

double CommonLength(const Interval& one, const Intervals& all) {
  double sum = 0;
  auto at = std::ranges::lower_bound(all, one.begin, {}, &Interval::end);
  for (; at != all.end() && at->begin < one.end; ++at)
    sum += std::min(one.end, at->end) - std::max(one.begin, at->begin);
  return sum;
}

json ReadTrace(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw NotFound("{}: cannot be read", path.string());
  json trace = json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    throw Invalid("{}: is not a Chrome trace with traceEvents", path.string());
  if (!trace.contains("otherData") || !trace["otherData"].is_object()) return trace;
  const json dropped = trace["otherData"].value("dropped_events", json());
  if (dropped.is_number_integer() && dropped.get<int64_t>() > 0)
    throw Invalid("{}: {} events were dropped, so its times are not complete", path.string(),
                  dropped.get<int64_t>());
  return trace;
}

constexpr double kMilliseconds = 1e-3;  // of a microsecond

}  // namespace

MessageOverlap ReadMessageOverlap(const std::filesystem::path& path) {
  const json trace = ReadTrace(path);
  struct Message {
    std::string name;
    int64_t bytes = 0;
    Interval time;
  };
  std::vector<Message> messages;
  Intervals operations, waits;
  MessageOverlap overlap;
  try {
    for (const json& event : trace["traceEvents"]) {
      if (event.at("ph") != "X") continue;
      const double begin = event.at("ts").get<double>(), length = event.at("dur").get<double>();
      const Interval time = {begin, begin + length};
      const auto name = event.at("name").get<std::string>();
      const auto category = event.at("cat").get<std::string>();
      if (category == "message") {
        messages.push_back({name, event.at("args").value("bytes", int64_t{0}), time});
      } else if (category == "gpu_operation") {
        (name == kWait ? waits : operations).push_back(time);
      } else if (category == "step" && name == "training step") {
        ++overlap.steps;
        overlap.step_time += length * kMilliseconds;
      }
    }
  } catch (const json::exception& error) {
    throw Invalid("{}: an event of the trace is not valid: {}", path.string(), error.what());
  }
  if (operations.empty()) throw Invalid("{}: has no operations on a GPU", path.string());
  waits = UnionOf(std::move(waits));
  const Intervals computing = Difference(UnionOf(std::move(operations)), waits);
  overlap.computing = Length(computing) * kMilliseconds;
  overlap.waiting = Length(waits) * kMilliseconds;
  for (const Message& message : messages) {
    for (MessageOverlap::Kind* const kind : {&overlap.kinds[message.name], &overlap.all}) {
      ++kind->count;
      kind->bytes += message.bytes;
      kind->time += (message.time.end - message.time.begin) * kMilliseconds;
      kind->hidden += CommonLength(message.time, computing) * kMilliseconds;
    }
  }
  return overlap;
}

std::string Describe(const MessageOverlap& overlap) {
  const auto steps = static_cast<double>(std::max<int64_t>(overlap.steps, 1));
  const auto line = [&](const std::string& name, const MessageOverlap::Kind& kind) {
    return fmt::format("{:<20}{:>8.1f}{:>10.1f}{:>9.2f}{:>9.2f}{:>8.1f} %\n", name,
                       static_cast<double>(kind.count) / steps,
                       static_cast<double>(kind.bytes) / steps / (1 << 20), kind.time / steps,
                       kind.hidden / steps, kind.time > 0 ? 100 * kind.hidden / kind.time : 100.0);
  };
  std::vector<std::pair<std::string, MessageOverlap::Kind>> kinds(overlap.kinds.begin(),
                                                                  overlap.kinds.end());
  std::ranges::stable_sort(kinds, std::greater<>(),
                           [](const auto& kind) { return kind.second.time; });
  std::string text = fmt::format("{:<20}{:>8}{:>10}{:>9}{:>9}{:>10}\n", "messages of a step",
                                 "number", "MiB", "ms", "hidden", "share");
  for (const auto& [name, kind] : kinds) text += line(name, kind);
  text += line("all", overlap.all);
  text += fmt::format(
      "a step takes {:.1f} ms on the host; the GPU computes for {:.1f} ms and waits for messages "
      "for {:.1f} ms ({} steps)\n",
      overlap.step_time / steps, overlap.computing / steps, overlap.waiting / steps, overlap.steps);
  return text;
}

}  // namespace switchyard::profile
