// Documents of the input files, and their tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "train/data/rollout.h"

namespace switchyard::train {

// Reads training documents from text, JSON-lines and Parquet files.

// A text, a chat if `messages` is not null, or the tokens of a rollout.
struct Document {
  std::string text;
  nlohmann::ordered_json messages;  // [{"role": …, "content": …} …]
  // "corpus/a.jsonl:12" or "corpus/a.parquet: row group 0, row 11", for error messages
  std::string where;
  // Only for chats: the offered tools, and further variables of the chat template; null if absent.
  nlohmann::ordered_json tools = nullptr;
  nlohmann::ordered_json template_kwargs = nullptr;
  std::optional<RolloutTokens> rollout = std::nullopt;
  std::optional<GivenExperts> experts = std::nullopt;
};

// File formats by extension: .jsonl has one document per line, {"text": "…"} or {"messages":
// [{"role": "user", "content": "…"}, …]}. A chat may also have "tools" and "chat_template_kwargs",
// in the form that a chat request has. A line with "output_ids" is a rollout, and any document may
// have routed experts (rollout.h). Other keys are ignored, empty lines skipped. .parquet has one
// document per row, and its columns are the keys (text/parquet/rows.h). A null is an absent key,
// also in structs. Rows in which all of these columns are null are skipped. A file with any other
// extension is one document. A directory stands for the .jsonl, .parquet, .txt and .md files below
// it, ordered by path. Throws Error that names file and line (or row group and row) for unreadable
// or empty files, paths without any document, and text that is not UTF-8. Also throws for a line
// that is not JSON, that has neither key or both keys, or whose messages are not a list of {role,
// content} strings. The content of an assistant message with "tool_calls" may be null or absent.
std::vector<Document> ReadDocuments(const std::vector<std::filesystem::path>& paths);

// Encodes documents into token ids and a loss mask.

struct EncodedDocument {
  std::vector<int32_t> ids;
  // [ids] loss mask: 1 if the id is a target. The first id is never a target, even if its mask is
  // 1.
  std::vector<uint8_t> learned;
  // [ids, layers, top_k] experts given to each token (Batch::experts); null: none. Shared by the
  // ranks, because they may take more memory than the ids.
  std::shared_ptr<const std::vector<int32_t>> experts = nullptr;
  // [ids] log-probability of each id in the rollout, NaN if unknown; empty: none is known.
  std::vector<float> logprobs = {};
};

// Encodes documents with the tokenizer of a directory. Immutable: usable by any thread.
class DocumentEncoder {
 public:
  enum class ChatLoss : uint8_t {
    kAll,  // every token of a chat
    // The text of each assistant turn in the rendered chat, without the generation prompt. The
    // output of a rollout.
    kAssistant,
  };

  // Reads the tokenizer (Tokenizer::FromDirectory) and the chat template. The token named eos_token
  // ends every text. `shape`: the model for which token ids and given experts are checked. Throws
  // errors of Tokenizer and ChatTemplate.
  DocumentEncoder(const std::filesystem::path& dir, ChatLoss chat_loss, ModelShape shape = {});

  // A text is encoded with the special tokens that the tokenizer adds to every text. The eos token
  // is appended if the tokenizer has one and the text does not end with this token. Special tokens
  // spelled out in a text stay text. For a chat, the output of the template is encoded. With
  // kAssistant, this output is split at the start and end of each assistant turn's text, and each
  // segment is encoded separately. Prompts are therefore tokenized as in serving. Throws Error
  // kInvalid, naming the document: there is no template for a chat, a chat has no assistant turn,
  // or the template rejects the chat. kAssistant also requires a template that does not change
  // earlier text as the conversation grows. Rollouts are not tokenized. Throws the errors of
  // ExpertsOfTokens, and kInvalid for a rollout's token that is not in the model's vocabulary.
  EncodedDocument Encode(const Document& document) const;

  // The tokens of a chat's answers, for statistics. They are the targets of kAssistant, which the
  // encoder must have. If Encode refuses the chat, they are the contents of the assistant's
  // messages, encoded without the template. Empty if the chat has no answer.
  std::vector<int32_t> AnswersOf(const Document& chat) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  EncodedDocument EncodeText(const std::string& text) const;
  EncodedDocument EncodeChat(const Document& document) const;
  EncodedDocument EncodeRollout(const Document& document) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate chat_template_;
  ChatLoss chat_loss_;
  ModelShape shape_;
  std::optional<int32_t> eos_;
};

}  // namespace switchyard::train
