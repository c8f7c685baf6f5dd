// Anthropic's Messages API: POST /v1/messages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "text/output/output_events.h"

namespace switchyard::anthropic {

// Anthropic's Messages API: POST /v1/messages and POST /v1/messages/count_tokens.

void Register(http::Server& server, Service& service);

// Converts requests of Anthropic's Messages API to chat requests of OpenAI's API.

// Converts the request `f` to a body of /v1/chat/completions with the same meaning. Blocks of
// thinking become reasoning_content, tool_use becomes tool_calls, and tool_result a message of role
// tool. Throws RequestError that names the field of `f`.
Json ChatBodyOf(const Fields& f);

// Content blocks of a response of Anthropic's Messages API, and the events of its stream.

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
