// Documents to token ids, and which of them are learned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "train/data/documents.h"

namespace switchyard::train {

struct EncodedDocument {
  std::vector<int32_t> ids;
  // [ids] whether the model is to learn to write the id; the first is never a target, whatever
  // stands here.
  std::vector<uint8_t> learned;
};

// Turns documents into ids by a tokenizer's directory. Immutable: any thread.
class DocumentEncoder {
 public:
  enum class ChatLoss : uint8_t {
    kAll,        // every token of a chat
    kAssistant,  // what the template writes for an assistant's turn once its opening stands
  };

  // Reads tokenizer.json, tokenizer_config.json (eos_token ends every text) and the chat template.
  // Throws Error as Tokenizer and ChatTemplate do.
  DocumentEncoder(const std::filesystem::path& dir, ChatLoss chat_loss);

  // A text becomes its tokens with those the tokenizer puts around every text, and the eos token,
  // if there is one and it is not there already; special tokens spelled out in a text stay text. A
  // chat becomes what the template writes. With kAssistant it is encoded in stretches, before and
  // behind the opening of each assistant's turn, as a server sees them. Throws Error kInvalid that
  // names the place: a chat without a template or without an assistant's turn, a template that
  // refuses it or whose earlier text changes as the conversation goes on (kAssistant needs it to
  // stay).
  EncodedDocument Encode(const Document& document) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  EncodedDocument EncodeText(const std::string& text) const;
  EncodedDocument EncodeChat(const Document& document) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate chat_template_;
  ChatLoss chat_loss_;
  std::optional<int32_t> eos_;
};

}  // namespace switchyard::train
