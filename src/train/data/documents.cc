#include "train/data/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || fs::is_directory(path)) throw NotFound("{}: cannot be read", path.string());
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw NotFound("{}: read error", path.string());
  return text;
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

bool HasText(const Json& message, const char* key) {
  return message.is_object() && message.contains(key) && message.at(key).is_string();
}

// Whether `message` is an assistant message with tool calls and without text.
bool OnlyCalls(const Json& message) {
  if (message.at("role") != "assistant") return false;
  const auto content = message.find("content");
  if (content != message.end() && !content->is_null()) return false;
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

void CheckMessages(const Json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    throw Invalid("{}: \"messages\" is not a list of at least one message", where);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!HasText(messages[i], "role")) {
      throw Invalid("{}: message {} has no string \"role\"", where, i);
    }
    if (!HasText(messages[i], "content") && !OnlyCalls(messages[i])) {
      throw Invalid("{}: message {} has no string \"content\"", where, i);
    }
  }
}

// The value of an optional key of a chat; null if it is missing.
Json TakeOptional(const char* key, bool is_wanted_type(const Json&), const char* type,
                  const std::string& where, Json* json) {
  const auto found = json->find(key);
  if (found == json->end() || found->is_null()) return nullptr;
  if (!is_wanted_type(*found)) throw Invalid("{}: \"{}\" is not {}", where, key, type);
  return std::move(*found);
}

Document ReadLine(std::string_view line, std::string where) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::exception& error) {
    throw Invalid("{}: not JSON: {}", where, error.what());
  }
  const bool has_text = json.is_object() && json.contains("text");
  const bool has_messages = json.is_object() && json.contains("messages");
  if (has_text == has_messages) {
    throw Invalid("{}: want an object with either \"text\" or \"messages\"", where);
  }
  Document document;
  if (has_text) {
    if (!json["text"].is_string()) throw Invalid("{}: \"text\" is not a string", where);
    document.text = json["text"].get<std::string>();
  } else {
    CheckMessages(json["messages"], where);
    document.messages = std::move(json["messages"]);
    document.tools = TakeOptional(
        "tools", [](const Json& value) { return value.is_array(); }, "a list", where, &json);
    document.template_kwargs = TakeOptional(
        "chat_template_kwargs", [](const Json& value) { return value.is_object(); }, "an object",
        where, &json);
  }
  document.where = std::move(where);
  return document;
}

void ReadJsonLines(const fs::path& path, std::vector<Document>* out) {
  const std::string text = ReadFile(path);
  const size_t before = out->size();
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (IsBlank(line)) continue;
    out->push_back(ReadLine(line, fmt::format("{}:{}", path.string(), number + 1)));
  }
  if (out->size() == before) throw Invalid("{}: no document found", path.string());
}

void ReadText(const fs::path& path, std::vector<Document>* out) {
  std::string text = ReadFile(path);
  if (IsBlank(text)) throw Invalid("{}: no text found", path.string());
  for (size_t i = 0; i < text.size();) {
    const Utf8Sequence sequence = ScanUtf8(text, i);
    if (sequence.kind != Utf8Sequence::kValid) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(i), '\n');
      throw Invalid("{}:{}: not UTF-8 at byte {} of the file", path.string(), line + 1, i);
    }
    i += sequence.length;
  }
  out->push_back({.text = std::move(text), .messages = nullptr, .where = path.string()});
}

std::vector<fs::path> FilesBelow(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const fs::path ending = entry.path().extension();
    if (entry.is_regular_file() && (ending == ".jsonl" || ending == ".txt" || ending == ".md")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<Document> ReadDocuments(const std::vector<fs::path>& paths) {
  std::vector<Document> out;
  for (const fs::path& path : paths) {
    const std::vector<fs::path> files =
        fs::is_directory(path) ? FilesBelow(path) : std::vector<fs::path>{path};
    if (files.empty()) {
      throw Invalid("{}: the directory contains no .jsonl, .txt or .md file", path.string());
    }
    for (const fs::path& file : files) {
      if (file.extension() == ".jsonl") {
        ReadJsonLines(file, &out);
      } else {
        ReadText(file, &out);
      }
    }
  }
  if (out.empty()) throw Invalid("--data: no file or directory is given");
  return out;
}

}  // namespace switchyard::train
