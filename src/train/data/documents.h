// What is learned from: files of text, read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard::train {

// A text, or a chat where `messages` is no null.
struct Document {
  std::string text;
  nlohmann::ordered_json messages;  // [{"role": …, "content": …} …]
  std::string where;                // "corpus/a.jsonl:12", for messages
};

// Files by their endings: .jsonl has a document in each line, {"text": "…"} or
// {"messages": [{"role": "user", "content": "…"}, …]}, other keys unread, empty lines skipped;
// every other file is one document. A directory stands for the .jsonl, .txt and .md files below it,
// in order of their paths. Throws Error that names the file, and the line: one that cannot be read
// or holds nothing, a line that is no JSON, has neither key or both, messages that are no list of
// {role, content} strings; text that is no UTF-8; paths that hold no document at all.
std::vector<Document> ReadDocuments(const std::vector<std::filesystem::path>& paths);

}  // namespace switchyard::train
