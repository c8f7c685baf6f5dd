#include "text/chat/encode_rendered.h"

#include <string_view>

namespace switchyard {

std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                    bool add_special_tokens, size_t limit) {
  std::vector<Tokenizer::Piece> pieces;
  pieces.reserve(rendered.runs.size());
  for (const jinja::Run& run : rendered.runs) {
    pieces.push_back(
        {std::string_view(rendered.text).substr(run.begin, run.end - run.begin), run.trusted});
  }
  return tokenizer.EncodePieces(pieces, add_special_tokens, limit);
}

}  // namespace switchyard
