// The lines that users typed in earlier chats.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace switchyard::chat {

// A file with one line per text, readable by its owner only. Several chats may append at the same
// time. Failures are not errors: a chat works without its history.
class HistoryFile {
 public:
  static constexpr size_t kMost = 1000;  // texts kept

  explicit HistoryFile(std::filesystem::path path) : path_(std::move(path)) {}

  // $XDG_STATE_HOME/switchyard/chat_history, default ~/.local/state/...; "" without a home.
  static std::filesystem::path DefaultPath();

  // The last kMost texts, oldest first. Shortens the file if it has more than twice as many.
  std::vector<std::string> Load() const;
  void Append(const std::string& text) const;

 private:
  const std::filesystem::path path_;  // "": no history
};

}  // namespace switchyard::chat
