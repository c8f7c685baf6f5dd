// Text of generated tokens: bytes and labels, character offsets, stop strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Bytes and labels of single tokens in log-probabilities.

// The bytes of the token's text, which clients can concatenate. If a token is only a part of a
// character, its text is U+FFFD, but its bytes are those of the part.
std::string TokenBytes(const Tokenizer& tokenizer, int32_t id);

// The token's text if its bytes are valid UTF-8; otherwise the escaped bytes in OpenAI's form,
// "\xf0\x9f". So different tokens have different labels.
std::string TokenLabel(const Tokenizer& tokenizer, int32_t id);

// Character offsets of tokens in the generated text.

// Counts characters (code points) while a detokenizer converts tokens to text. A token that
// continues a character has the offset of that character. Characters are counted in the text that
// the detokenizer returns. Characters that the detokenizer still holds back are counted from the
// bytes of their tokens. One instance per generation; not thread-safe. Constant work and memory per
// byte.
class TokenOffsets {
 public:
  // Offset of the character in which a token with these bytes begins. A hidden token has no bytes
  // and begins at the end of the text so far.
  int64_t Begin(std::string_view bytes) const;
  // Adds a token. `bytes`: its bytes, empty if the token is hidden. `text`: the text that the
  // detokenizer returned for this token.
  void Push(std::string_view bytes, std::string_view text);

 private:
  int64_t certain_ = 0;  // characters that the detokenizer has returned
  int64_t ahead_ = 0;    // complete characters that it has not returned yet
  std::string cut_;      // bytes of an incomplete character, at most 3
};

// Stop string matching in streamed text.

// Returns text up to the first stop string. Holds back a suffix that may be the start of a stop
// string. One instance per request; not thread-safe.
class StopStrings {
 public:
  // `keep_match`: the returned text includes the stop string with its hidden parts (SGLang's
  // no_stop_trim).
  StopStrings(std::vector<std::string> stops, bool keep_match)
      : stops_(std::move(stops)), keep_match_(keep_match) {}

  bool empty() const { return stops_.empty(); }

  struct Piece {
    std::string_view text;
    bool may_stop = true;  // false: a stop string that ends in this piece does not match
    bool hidden = false;   // true for special tokens: the text is matched, but not returned
  };
  // Returns the text that is safe to show. Returns nothing once matched() is set.
  std::string Push(const Piece& piece);
  std::string Push(std::string_view text) { return Push(Piece{.text = text}); }
  // Returns the held-back text at the end of the generation.
  std::string Finish();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t HoldBack() const;  // length of the longest suffix of held_ that starts a stop string
  bool FindMatch(size_t* begin, const std::string** found) const;
  // Removes the first bytes of held_; returns those that are not hidden.
  std::string Release(size_t bytes);

  std::vector<std::string> stops_;
  bool keep_match_;
  std::string held_;
  std::vector<bool> hidden_;  // for each byte of held_: whether it is hidden
  size_t unchecked_ = 0;      // number of leading bytes of held_ in which no match may end
  std::optional<std::string> matched_;
};

}  // namespace switchyard
