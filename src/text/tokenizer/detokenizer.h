// Ids to text while they are generated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace switchyard {

class DecodeStream;  // decoder.h
class Tokenizer;
struct TokenizerParts;  // tokenizer_parts.h

// Turns the ids of one generation into text piece by piece: what Push has returned never changes
// later. The concatenation of everything returned, Finish included, is Decode(ids), or after a
// prompt what Decode(prompt + ids) has beyond Decode(prompt). Work per pushed id does not depend on
// the text so far.
//
// Belongs to one request and one thread at a time; must not outlive the tokenizer.
class IncrementalDetokenizer {
 public:
  // `prompt`: the ids before the generation, so that a first word keeps its leading space and a
  // character begun in the prompt is completed. Only its end is decoded: from the last token that
  // shows text of its own, and is no byte token, as runs of those have no bound. Empty: the
  // generation starts the text.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> prompt = {});
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  // The text that became certain: whole characters only. An unfinished character, or a run of
  // byte-fallback tokens that the next token may still change, waits.
  std::string Push(std::span<const int32_t> ids);

  // What still waited. No Push may follow.
  std::string Finish();

 private:
  std::string DropPromptText(std::string text);

  const TokenizerParts* parts_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
  std::string
      prompt_text_;  // text of the prompt that the stream had not yet returned, still to be dropped
};

}  // namespace switchyard
