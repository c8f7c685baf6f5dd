// Reads training documents from text files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard::train {

// A text, or a chat if `messages` is not null.
struct Document {
  std::string text;
  nlohmann::ordered_json messages;  // [{"role": …, "content": …} …]
  std::string where;                // "corpus/a.jsonl:12", for error messages
  // Only for chats: the offered tools, and further variables of the chat template; null if absent.
  nlohmann::ordered_json tools = nullptr;
  nlohmann::ordered_json template_kwargs = nullptr;
};

// File formats by extension: .jsonl has one document per line, {"text": "…"} or {"messages":
// [{"role": "user", "content": "…"}, …]}. A chat may also have "tools" and "chat_template_kwargs",
// in the form that a chat request has. Other keys are ignored, empty lines skipped. A file with any
// other extension is one document. A directory stands for the .jsonl, .txt and .md files below it,
// ordered by path. Throws Error that names file and line for unreadable or empty files, paths
// without any document, and text that is not UTF-8. Also throws for a line that is not JSON, that
// has neither key or both keys, or whose messages are not a list of {role, content} strings. The
// content of an assistant message with "tool_calls" may be null or absent.
std::vector<Document> ReadDocuments(const std::vector<std::filesystem::path>& paths);

}  // namespace switchyard::train
