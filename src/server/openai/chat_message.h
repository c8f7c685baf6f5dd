// JSON of parsed outputs in the format of /v1/chat/completions.
#pragma once

#include <string>
#include <vector>

#include "server/api/chat_output.h"
#include "server/api/json_body.h"

namespace switchyard::openai {

// The message of a choice. `echo`: put before the content. The content is null if there are only
// tool calls.
Json MessageOf(const OutputPlan& plan, const std::vector<OutputEvent>& events,
               const std::string& echo);

// Deltas of a stream. Each delta has either reasoning, content or one call, because clients expect
// no combinations.
std::vector<Json> DeltasOf(const std::vector<OutputEvent>& events);

}  // namespace switchyard::openai
