#include "train/data/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/regular_file.h"
#include "text/chat/chat_template.h"
#include "text/parquet/metadata.h"
#include "text/parquet/rows.h"
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

Document DocumentOf(Json json, std::string where) {
  const bool has_text = json.is_object() && json.contains("text");
  const bool has_messages = json.is_object() && json.contains("messages");
  Document document;
  if (json.is_object()) {
    document.rollout = ReadRollout(json, where);
    document.experts = ReadGivenExperts(json, where);
  }
  if (document.rollout ? has_messages : has_text == has_messages) {
    throw Invalid(
        "{}: want an object with either \"text\" or \"messages\", or with \"output_ids\" and "
        "without \"messages\"",
        where);
  }
  if (document.rollout) {
    // The text of a response repeats output_ids.
  } else if (has_text) {
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

Document ReadLine(std::string_view line, std::string where) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::exception& error) {
    throw Invalid("{}: not JSON: {}", where, error.what());
  }
  return DocumentOf(std::move(json), std::move(where));
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

// The columns of a Parquet file that are read. Other columns are not decoded.
std::vector<std::string_view> ColumnsToRead(const std::vector<std::string>& columns,
                                            const std::string& name) {
  const auto has = [&](std::string_view column) { return std::ranges::count(columns, column) > 0; };
  if (!has("text") && !has("messages") && !has("output_ids")) {
    constexpr size_t kNamed = 20;
    std::vector<std::string> named;
    for (const std::string& column : std::span(columns).first(std::min(columns.size(), kNamed)))
      named.push_back(parquet::QuotedColumn(column));
    throw Invalid(
        "{}: has none of the columns \"text\", \"messages\" and \"output_ids\"; it has {} "
        "columns: {}",
        name, columns.size(), Joined(named, ", "));
  }
  std::vector<std::string_view> read{"text", "messages", "output_ids", "routed_experts",
                                     "routed_experts_start_len"};
  // Only of chats, and only of rollouts. In other files they may have any type.
  if (has("messages")) read.insert(read.end(), {"tools", "chat_template_kwargs"});
  if (has("output_ids")) read.insert(read.end(), {"input_ids", "meta_info"});
  return read;
}

void ReadParquet(const fs::path& path, std::vector<Document>* out) {
  const std::string name = path.string();
  const std::shared_ptr<const MappedFile> file = MapFile(RegularFile(path));
  const std::span<const uint8_t> bytes(file->data, file->size);
  parquet::Metadata metadata = parquet::ReadMetadata(bytes, name);
  const std::vector<std::string> columns = parquet::RootColumns(metadata);
  parquet::RowReader rows(bytes, name, std::move(metadata), ColumnsToRead(columns, name));
  const size_t before = out->size();
  while (auto row = rows.Next()) {
    if (row->values.empty()) continue;
    out->push_back(DocumentOf(std::move(row->values), fmt::format("{}: row group {}, row {}", name,
                                                                  row->row_group, row->row)));
  }
  if (out->size() == before) throw Invalid("{}: no document found", name);
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
    const bool wanted =
        ending == ".jsonl" || ending == ".parquet" || ending == ".txt" || ending == ".md";
    if (entry.is_regular_file() && wanted) files.push_back(entry.path());
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
      throw Invalid("{}: the directory contains no .jsonl, .parquet, .txt or .md file",
                    path.string());
    }
    for (const fs::path& file : files) {
      if (file.extension() == ".jsonl") {
        ReadJsonLines(file, &out);
      } else if (file.extension() == ".parquet") {
        ReadParquet(file, &out);
      } else {
        ReadText(file, &out);
      }
    }
  }
  if (out.empty()) throw Invalid("--data: no file or directory is given");
  return out;
}

namespace {

// The ids of bytes [begin, end) of a rendered chat. Special tokens in user content stay text.
std::vector<int32_t> EncodeRange(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                 size_t begin, size_t end) {
  std::vector<Tokenizer::Piece> pieces;
  for (const jinja::Run& run : rendered.runs) {
    const size_t from = std::max(run.begin, begin), to = std::min(run.end, end);
    if (from >= to) continue;
    pieces.push_back({std::string_view(rendered.text).substr(from, to - from), run.trusted});
  }
  return tokenizer.EncodePieces(pieces, /*add_special_tokens=*/false);
}

void Append(const std::vector<int32_t>& ids, bool learned, EncodedDocument* out) {
  out->ids.insert(out->ids.end(), ids.begin(), ids.end());
  out->learned.resize(out->ids.size(), learned ? 1 : 0);
}

}  // namespace

DocumentEncoder::DocumentEncoder(const std::filesystem::path& dir, ChatLoss chat_loss,
                                 ModelShape shape)
    : tokenizer_(Tokenizer::FromDirectory(dir)),
      chat_template_(ChatTemplate::FromDirectory(dir)),
      chat_loss_(chat_loss),
      shape_(std::move(shape)),
      eos_(tokenizer_->NamedToken("eos_token")) {}

EncodedDocument DocumentEncoder::Encode(const Document& document) const {
  EncodedDocument out;
  if (document.rollout) {
    out = EncodeRollout(document);
  } else if (document.messages.is_null()) {
    out = EncodeText(document.text);
  } else {
    try {
      out = EncodeChat(document);
    } catch (const Error& error) {
      const std::string what = error.what();
      if (what.starts_with(document.where)) throw;
      throw Invalid("{}: {}", document.where, what);
    }
  }
  if (document.experts) {
    out.experts = std::make_shared<const std::vector<int32_t>>(
        ExpertsOfTokens(*document.experts, std::ssize(out.ids), shape_, document.where));
  }
  return out;
}

std::vector<int32_t> DocumentEncoder::AnswersOf(const Document& chat) const {
  std::vector<int32_t> ids;
  try {
    const EncodedDocument encoded = EncodeChat(chat);
    for (size_t i = 0; i < encoded.ids.size(); ++i)
      if (encoded.learned[i] != 0) ids.push_back(encoded.ids[i]);
    return ids;
  } catch (const Error&) {
    // Some templates drop the reasoning of earlier turns, or reject the order of roles.
  }
  for (const Json& message : chat.messages) {
    if (message.at("role") != "assistant" || !HasText(message, "content")) continue;
    const Tokenizer::Piece piece{message.at("content").get_ref<const std::string&>(), false};
    const std::vector<int32_t> answer =
        tokenizer_->EncodePieces({&piece, 1}, /*add_special_tokens=*/false);
    ids.insert(ids.end(), answer.begin(), answer.end());
  }
  return ids;
}

EncodedDocument DocumentEncoder::EncodeRollout(const Document& document) const {
  const RolloutTokens& tokens = *document.rollout;
  EncodedDocument out;
  Append(tokens.prompt, chat_loss_ == ChatLoss::kAll, &out);
  Append(tokens.output, true, &out);
  for (size_t i = 0; i < out.ids.size(); ++i) {
    if (out.ids[i] >= 0 && (shape_.vocab_size == 0 || out.ids[i] < shape_.vocab_size)) continue;
    throw Invalid("{}: token {} is {}, want 0 to {}", document.where, i, out.ids[i],
                  shape_.vocab_size - 1);
  }
  if (tokens.logprobs.empty()) return out;
  out.logprobs.assign(tokens.prompt.size(), std::numeric_limits<float>::quiet_NaN());
  out.logprobs.insert(out.logprobs.end(), tokens.logprobs.begin(), tokens.logprobs.end());
  return out;
}

EncodedDocument DocumentEncoder::EncodeText(const std::string& text) const {
  EncodedDocument out;
  const Tokenizer::Piece piece{text, false};
  Append(tokenizer_->EncodePieces({&piece, 1}, /*add_special_tokens=*/true), true, &out);
  if (eos_ && (out.ids.empty() || out.ids.back() != *eos_)) Append({*eos_}, true, &out);
  return out;
}

EncodedDocument DocumentEncoder::EncodeChat(const Document& document) const {
  const auto render = [&](size_t messages, bool open) {
    ChatInput input;
    input.messages = Json(document.messages.begin(),
                          document.messages.begin() + static_cast<ptrdiff_t>(messages));
    input.add_generation_prompt = open;
    input.tools = document.tools;
    input.kwargs = document.template_kwargs;
    return chat_template_.Apply(input);
  };
  const size_t count = document.messages.size();
  const jinja::Rendered whole = render(count, false);
  EncodedDocument out;
  if (chat_loss_ == ChatLoss::kAll) {
    Append(EncodeRendered(*tokenizer_, whole), true, &out);
    return out;
  }
  size_t done = 0;  // bytes of `whole` that are encoded
  bool answered = false;
  for (size_t i = 0; i < count; ++i) {
    if (document.messages[i].at("role") != "assistant") continue;
    // If the chat starts with the assistant, the text before the first turn is empty. It is not
    // rendered, because a template may reject an empty list of messages.
    const std::string opening = i == 0 ? std::string() : render(i, true).text;
    const std::string turn = i + 1 == count ? whole.text : render(i + 1, false).text;
    if (opening.size() < done || turn.size() < opening.size() || !turn.starts_with(opening) ||
        !whole.text.starts_with(turn)) {
      throw Invalid(
          "{}: message {}: the chat template changes earlier text as the chat continues, so the "
          "assistant's turns cannot be separated; use all tokens as targets",
          document.where, i);
    }
    Append(EncodeRange(*tokenizer_, whole, done, opening.size()), false, &out);
    Append(EncodeRange(*tokenizer_, whole, opening.size(), turn.size()), true, &out);
    done = turn.size();
    answered = true;
  }
  if (!answered) {
    throw Invalid("{}: no message with role assistant, so there is no target", document.where);
  }
  // Text after the last answer is never a target, so it is omitted.
  return out;
}

}  // namespace switchyard::train
