// Where in a text its tokens begin.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

// Counts characters (code points) while a detokenizer turns tokens into text. A token that
// continues a character begins in that character. The text that the detokenizer returns decides;
// between two pieces of it, while bytes wait for their character, bytes do. One generation, one
// thread; constant work and memory for each byte.
class TokenOffsets {
 public:
  // How many characters come before the one in which a token of these bytes begins. A token that
  // is not shown has none, and begins where the text so far ends.
  int64_t Begin(std::string_view bytes) const;
  // The token's bytes, empty where it is not shown, and the text that became certain with it.
  void Push(std::string_view bytes, std::string_view text);

 private:
  int64_t certain_ = 0;  // characters that the detokenizer has returned
  int64_t ahead_ = 0;    // characters whose bytes are all here and which it has not
  std::string cut_;      // bytes of a character that is not whole yet, at most 3
};

}  // namespace switchyard
