// The "decoder" of tokenizer.json: tokens to text, as stream filters, so that batch and incremental
// decoding share one implementation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace switchyard {

// Whether the token stands for one byte, like "<0xE4>" in vocabularies with byte fallback.
bool IsByteToken(std::string_view token);

// Receives tokens, each in one or more fragments of whole characters.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void Text(std::string_view fragment) = 0;
  virtual void EndToken() = 0;
  virtual void EndText() = 0;
};

// Which part of a text a stream decodes.
enum class DecodeScope {
  kWholeText,
  kMiddleOfText,  // spaces at the start and end are kept
};

// Immutable description of the filters; thread-safe.
class TokenDecoder {
 public:
  // A null node joins tokens by spaces. Throws Error for types other than Sequence, ByteLevel,
  // ByteFallback, Fuse, Metaspace, Replace and Strip.
  explicit TokenDecoder(const JsonNode& node);

 private:
  friend class DecodeStream;

  using MakeFilter = std::function<std::unique_ptr<TokenSink>(TokenSink* next, DecodeScope scope)>;

  void Read(const JsonNode& node, int depth);
  void ReadReplace(const JsonNode& node);
  void ReadStrip(const JsonNode& node);

  std::vector<MakeFilter> filters_;
  bool fused_ = false;  // while reading: the filters so far join the text into one token
};

// State of one text in the filters. Single-threaded; must not outlive the decoder. Work per token
// does not depend on the length of the text. As an exception, a Replace with a regular expression
// in a fused text holds back all text until the end.
class DecodeStream {
 public:
  DecodeStream(const TokenDecoder& decoder, DecodeScope scope);
  DecodeStream(const DecodeStream&) = delete;
  DecodeStream& operator=(const DecodeStream&) = delete;

  void Push(std::string_view token);
  void Finish();
  // Returns the text that became final since the last call.
  std::string Take() { return std::exchange(end_.text, {}); }

 private:
  struct Collector final : TokenSink {
    void Text(std::string_view fragment) override { text.append(fragment); }
    void EndToken() override {}
    void EndText() override {}
    std::string text;
  };

  Collector end_;
  std::vector<std::unique_ptr<TokenSink>> filters_;  // the last filter first
  TokenSink* start_;
};

}  // namespace switchyard
