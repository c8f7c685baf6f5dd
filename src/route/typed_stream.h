// Named events of a response that several workers answer one after another, as one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/json.h"

namespace switchyard::route {

// The streams of OpenAI's Responses API and of Anthropic's Messages API. Their events name a place:
// an item or a block, and a part of it. Events with new text of a place may divide it anywhere.
// Every other event occurs once for its type and place. So of a later worker, texts lose the bytes
// that the client has, and events that the client has are dropped. Later events get the ids and
// times of the first worker, and sequence numbers without gaps. Used by one thread.
class TypedStream {
 public:
  // Whether an event with this name ends a response.
  static bool IsLast(std::string_view name);
  // Removes from the event what the client has, and converts the rest. False if nothing is left.
  bool Trim(nlohmann::ordered_json& event);
  // Another worker begins again.
  void Restart();

 private:
  using Json = nlohmann::ordered_json;
  bool TrimText(const std::string& place, Json& text);
  // Notes which of the present worker's ids stand for those that the client has.
  void CompareIds(const Json& sent, const Json& now);
  void SetIds(Json& value) const;

  std::map<std::string, Json> once_;             // events that the client has, by type and place
  std::map<std::string, size_t> sent_, passed_;  // bytes of texts: of the client; of this worker
  std::map<std::string, std::string> ids_;       // of this worker → of the client
  Json created_;                                 // of the first worker
  int64_t sequence_ = 0;                         // the next sequence number
};

}  // namespace switchyard::route
