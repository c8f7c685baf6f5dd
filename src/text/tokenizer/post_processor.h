// The "post_processor" of tokenizer.json: adds special tokens around an encoded text.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace switchyard {

// Immutable, thread-safe.
class PostProcessor {
 public:
  // A null node adds nothing. `vocab_size`: upper bound of token ids, exclusive. Throws Error for
  // types other than Sequence, TemplateProcessing, ByteLevel, BertProcessing and RobertaProcessing,
  // and if more than one adds tokens.
  PostProcessor(const JsonNode& node, int vocab_size);

  std::vector<int32_t> AddSpecialTokens(std::vector<int32_t> ids) const;

 private:
  void Read(const JsonNode& node, int vocab_size, int depth);

  bool adds_tokens_ = false;
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace switchyard
