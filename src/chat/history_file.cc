#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "chat/line_reader.h"
#include "comm/net/file_descriptor.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

// Line ends and backslashes are written as \n and \\.
std::string Escaped(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n')
      line += "\\n";
    else if (c == '\\')
      line += "\\\\";
    else
      line += c;
  }
  return line;
}

std::string Unescaped(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      text += line[i];
      continue;
    }
    ++i;
    text += line[i] == 'n' ? '\n' : line[i];
  }
  return text;
}

bool WriteLines(const std::filesystem::path& path, const std::string& lines, int how) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0600));
  return file.get() >= 0 &&
         write(file.get(), lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
}

}  // namespace

std::filesystem::path HistoryFile::DefaultPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/')  // relative paths are invalid there
    return std::filesystem::path(state) / "switchyard/chat_history";
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local/state/switchyard/chat_history";
}

std::vector<std::string> HistoryFile::Load() const {
  std::vector<std::string> texts;
  if (path_.empty()) return texts;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) texts.push_back(Unescaped(line));
  if (texts.size() <= kMost) return texts;
  const bool shortens = texts.size() > 2 * kMost;
  texts.erase(texts.begin(), texts.end() - kMost);
  if (shortens) {
    std::string lines;
    for (const std::string& text : texts) lines += Escaped(text) + "\n";
    std::filesystem::path part = path_;
    part += ".part";
    std::error_code error;
    if (WriteLines(part, lines, O_TRUNC)) std::filesystem::rename(part, path_, error);
  }
  return texts;
}

void HistoryFile::Append(const std::string& text) const {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  WriteLines(path_, Escaped(text) + "\n", O_APPEND);
}

}  // namespace switchyard::chat
