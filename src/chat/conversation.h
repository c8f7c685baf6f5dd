// The messages of a chat.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace switchyard::chat {

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

}  // namespace switchyard::chat
