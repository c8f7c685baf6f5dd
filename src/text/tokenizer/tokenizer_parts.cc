#include "text/tokenizer/tokenizer_parts.h"

#include <algorithm>

namespace switchyard {

TokenizerParts::TokenizerParts(const JsonNode& root)
    : normalizer(MakeNormalizer(root["normalizer"])),
      pre_tokenizer(MakePreTokenizer(root["pre_tokenizer"])),
      model(root["model"]),
      added(root["added_tokens"], model.vocabulary(), normalizer.get()),
      vocab_size(std::max(model.vocabulary().size(), added.vocabulary().size())),
      post_processor(root["post_processor"], vocab_size),
      decoder(root["decoder"]) {}

void TokenizerParts::Push(std::span<const int32_t> ids, bool skip_special_tokens,
                          DecodeStream* stream) const {
  for (const int32_t id : ids) {
    if (const AddedToken* token = added.Find(id)) {
      if (!skip_special_tokens || !token->special) stream->Push(token->normalized_content);
    } else if (const std::string* text = model.vocabulary().Text(id)) {
      stream->Push(*text);
    }
  }
}

}  // namespace switchyard
