// Incremental decoding of generated ids to text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace switchyard {

class DecodeStream;  // decoder.h
class Tokenizer;
struct TokenizerParts;  // tokenizer_parts.h

// Turns the ids of one generation into text piece by piece; text that Push has returned does not
// change later. The concatenation of all returned text, including Finish, is Decode(ids). After a
// prompt, it is the part of Decode(prompt + ids) beyond Decode(prompt). Work per id does not depend
// on the length of the text.
//
// Belongs to one request; one thread at a time. Must not outlive the tokenizer.
class IncrementalDetokenizer {
 public:
  // `prompt`: the ids before the generation; empty if the generation starts the text. With a
  // prompt, the first word keeps its leading space, and a character that begins in the prompt is
  // completed. Only the end of the prompt is decoded, from the last token that can be decoded
  // alone. A byte token cannot be decoded alone, because it may be part of a run of any length.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> prompt = {});
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  // Returns the text that became final, in whole characters. An unfinished character is held back,
  // as is a run of byte-fallback tokens that the next token may change. `show_special`: special
  // tokens among `ids` become text, even with skip_special_tokens.
  std::string Push(std::span<const int32_t> ids, bool show_special = false);

  // Returns the text that was held back. No call of Push may follow.
  std::string Finish();

 private:
  std::string DropPromptText(std::string text);

  const TokenizerParts* parts_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
  // Text of the prompt that the stream has yet to return. It is then dropped.
  std::string prompt_text_;
};

}  // namespace switchyard
