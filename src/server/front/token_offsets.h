// Character offsets of tokens in the generated text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

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

}  // namespace switchyard
