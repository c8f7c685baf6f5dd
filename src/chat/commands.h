// The conversation, and the commands of a user.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/screen.h"
#include "core/json.h"

namespace switchyard::chat {

// The messages of a chat.

// Parameters of the requests. Absent ones are not sent, so the server's defaults apply.
struct Sampling {
  std::optional<double> temperature, top_p;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> max_tokens;
  std::string reasoning_effort;      // "": not sent
  std::string chat_template_kwargs;  // JSON object; "": not sent
};

// Turns alternate: a user's message, and the answer of the model. One thread at a time.
class Conversation {
 public:
  struct Turn {
    std::string user, answer, reasoning;
  };

  explicit Conversation(std::string system = {}) : system_(std::move(system)) {}

  const std::string& system() const { return system_; }
  void SetSystem(std::string text) { system_ = std::move(text); }  // "": none
  const std::vector<Turn>& turns() const { return turns_; }

  void Add(Turn turn) { turns_.push_back(std::move(turn)); }
  void Reset() { turns_.clear(); }  // keeps the system prompt
  bool Undo();                      // removes the last turn; false: there is none

  // Body of a streamed POST /v1/chat/completions that answers `user` after the turns so far.
  // Reasoning of earlier turns is not sent, as the APIs of reasoning models require.
  std::string Request(const std::string& model, const Sampling& sampling,
                      const std::string& user) const;

  // Text for a file: JSON {"messages": [...]} if `json`, else Markdown.
  std::string Saved(bool json) const;

 private:
  nlohmann::ordered_json Messages(bool with_reasoning) const;

  std::string system_;
  std::vector<Turn> turns_;
};

// The commands of an interactive chat, such as /reset.

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
