// The part of a request by which cache_aware recognizes common prefixes.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::route {

// Prompts longer than this are compared by their first bytes only.
inline constexpr size_t kMaxPromptKey = 1 << 16;

struct PromptInfo {
  std::string key;  // empty: no prompt was found
  // The request names a stored response, which only one worker has.
  bool names_stored_response = false;
};

// Reads the prompt of a request to OpenAI's, Anthropic's or SGLang's endpoints: text, token ids, or
// tools and messages. If a request continues an earlier conversation, its key begins with the key
// of the earlier request. A body that is not a JSON object has no key; the worker rejects it.
PromptInfo ReadPrompt(std::string_view body);

}  // namespace switchyard::route
