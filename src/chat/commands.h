// The commands of an interactive chat, such as /reset.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "chat/conversation.h"
#include "chat/screen.h"

namespace switchyard::chat {

// What the commands change.
struct ChatState {
  Conversation conversation;
  ReasoningMode reasoning = ReasoningMode::kShow;
  bool ended = false;                          // /exit
  std::set<std::filesystem::path> saved = {};  // files that /save wrote, which it may replace
};

// Whether a line is a command. "//..." is a text that begins with one slash.
bool IsCommand(std::string_view line);

// Runs a command, and returns the message for the user, "" if there is none. Throws Error kInvalid
// for unknown commands and wrong arguments, and kResource if a file cannot be written.
std::string RunCommand(std::string_view line, ChatState* state);

// "show", "fold" or "hide". Throws Error kInvalid that begins with `name`.
ReasoningMode ParseReasoningMode(std::string_view text, std::string_view name);

}  // namespace switchyard::chat
