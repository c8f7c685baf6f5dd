// Content blocks of a response of Anthropic's Messages API, and the events of its stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "text/output/output_events.h"

namespace switchyard::anthropic {

// Builds the blocks of one message: thinking, text and tool_use. One thread at a time.
class MessageBlocks {
 public:
  // Callback for each event of a stream. Arguments: the type of the event, and its other members.
  // May be null.
  using Sink = std::function<void(const char* type, Json members)>;
  explicit MessageBlocks(Sink sink = nullptr) : sink_(std::move(sink)) {}

  void Add(const std::vector<OutputEvent>& events);
  void Finish();  // ends the last block
  const Json& blocks() const { return blocks_; }

 private:
  void Begin(const char* type, const Json& block);
  void Append(const char* type, const char* key, const std::string& text);
  void End();
  void Emit(const char* type, Json members) const;

  Sink sink_;
  Json blocks_ = Json::array();
  std::string open_;       // type of the last block; empty if it has ended
  std::string arguments_;  // arguments of the open block, if its type is tool_use
};

}  // namespace switchyard::anthropic
