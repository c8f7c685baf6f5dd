// Output items of a response of OpenAI's Responses API, and the events of its stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "text/output/output_events.h"

namespace switchyard::openai {

// Builds the items of one response: reasoning, message and function_call. One thread at a time.
class ResponseItems {
 public:
  // Callback for each event of a stream. Arguments: the type of the event, and its other members.
  // May be null.
  using Sink = std::function<void(const std::string& type, Json members)>;
  explicit ResponseItems(Sink sink = nullptr) : sink_(std::move(sink)) {}

  void Add(const std::vector<OutputEvent>& events);
  // Ends the last item. `complete`: false marks it as incomplete.
  void Finish(bool complete);
  const Json& items() const { return items_; }
  // Returns the items as a chat message of the assistant, which the next request of the
  // conversation needs.
  Json Message() const;

 private:
  void AddText(const char* type, const std::string& text);
  void AddCall(const OutputEvent& event);
  void BeginText(const char* type);
  void End(const char* status);
  Json Place() const;  // item_id and output_index of the last item
  void Emit(const std::string& type, Json members) const;

  Sink sink_;
  Json items_ = Json::array();
  std::string open_;  // type of the last item; empty if it has ended
};

// "<prefix>_" and 32 hexadecimal digits.
std::string NewItemId(const char* prefix);

}  // namespace switchyard::openai
