// `switchyard chat`: the loop of questions and answers.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "chat/commands.h"
#include "chat/http_client.h"
#include "chat/screen.h"
#include "chat/signals.h"

namespace switchyard::chat {

struct ChatOptions {
  ServerUrl url;
  std::string api_key;  // "": none
  ConnectionOptions connection;
  std::string model;   // "": the server's first
  std::string system;  // system prompt; "": none
  Sampling sampling;
  std::optional<ReasoningMode> reasoning;  // absent: kShow on terminals, else kHide
  bool stats = false;                      // tokens and time after each answer
  bool history = true;                     // read and write the history file
  std::optional<std::string> once;         // one question; "-": all of stdin
};

// Runs a chat until the end of the input. On a terminal, lines are edited, commands work, and
// Ctrl-C stops an answer. Else each line is a question, and the first failure ends the chat.
// `check` throws if the server is known to have ended; it is called after a failed request.
// Returns 0, or 128 + signal if a signal ends the chat. Throws the errors of ChatClient.
int RunChat(const ChatOptions& options, Signals& signals, const std::function<void()>& check);

}  // namespace switchyard::chat
