// The event stream of a request that several workers answer one after another, as one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "route/typed_stream.h"

namespace switchyard::route {

// Splits the bytes of an event stream into events (WHATWG HTML, "Server-sent events").
class EventReader {
 public:
  struct Event {
    std::string name;     // of the last line `event`; empty: none
    std::string data;     // joined lines of `data`
    std::string comment;  // with its colon; only of an event without data
  };
  // The events that `bytes` complete.
  std::vector<Event> Add(std::string_view bytes);

 private:
  std::string line_;
  Event event_;
  bool has_data_ = false;
};

// The events of a response.
enum class StreamFormat : uint8_t {
  kChunks,  // OpenAI's completions: an event has new parts of choices; [DONE] at the end
  kTotals,  // POST /generate: an event has the whole output so far
  kTyped,   // OpenAI's responses and Anthropic's messages: named events (typed_stream.h)
};

// A worker that repeats a request sends the same output, because sampling depends only on the
// request and its seed. But it may divide the output into other events. So what the client has is
// counted per choice: bytes of each text, entries of each list, and whether it has the role, the
// name of a tool call and the finish reason. Events of a later worker lose what the client has.
// They get the id and the time of the first worker's events.
//
// With kTotals, only the number of tokens of an event counts. For kTyped, see TypedStream. Used by
// one thread.
class ReplayedStream {
 public:
  explicit ReplayedStream(StreamFormat format) : format_(format) {}

  // Converts the data of the worker's next event to data for the client; nullopt: the client has
  // all of it already. `name`: of the event.
  std::optional<std::string> Next(const std::string& data, std::string_view name = {});
  // Another worker begins again. False: too much was sent to repeat it.
  bool Restart();
  bool done() const { return done_; }  // the last event was sent

 private:
  struct Choice {
    std::map<std::string, size_t> sent,
        passed;  // by field: amounts sent to the client; sent by the present worker
    std::set<std::string> marks;  // what the client gets once and has
  };
  // Maximum bytes of events that are kept until Restart reads them.
  static constexpr size_t kMaxKept = size_t{32} << 20;

  std::optional<std::string> NextTotal(const std::string& data);
  // Removes from the event what the client has. False if nothing is left.
  bool Trim(nlohmann::ordered_json& event);
  bool TrimChoice(nlohmann::ordered_json& choice);
  static bool TrimText(const std::string& field, nlohmann::ordered_json& text, Choice& choice);
  static bool TrimList(const std::string& field, nlohmann::ordered_json& list, Choice& choice);
  static size_t Pass(const std::string& field, size_t count, Choice& choice);

  const StreamFormat format_;
  TypedStream typed_;
  bool replays_ = false, done_ = false, usage_sent_ = false;
  std::vector<std::string> kept_;  // of the first worker
  size_t kept_bytes_ = 0;
  std::map<int64_t, Choice> choices_;  // by index
  std::map<int64_t, int64_t> totals_;  // kTotals: tokens by index
  std::set<int64_t> ended_;            // kTotals
  nlohmann::ordered_json id_, created_;
};

}  // namespace switchyard::route
