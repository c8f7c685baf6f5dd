// The "post_processor" of tokenizer.json: the special tokens around an encoded text.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace switchyard {

// Immutable; any number of threads.
class PostProcessor {
 public:
  // A null node adds nothing. `vocab_size`: the ids that tokens may have. Throws Error for types
  // other than Sequence, TemplateProcessing, ByteLevel, BertProcessing and RobertaProcessing, and
  // for more than one that adds tokens.
  PostProcessor(const JsonNode& node, int vocab_size);

  std::vector<int32_t> AddSpecialTokens(std::vector<int32_t> ids) const;

 private:
  void Read(const JsonNode& node, int vocab_size, int depth);

  bool adds_tokens_ = false;
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace switchyard
