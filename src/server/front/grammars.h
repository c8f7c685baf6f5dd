// The grammars of requests, compiled for the served model.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The bytes of each token of a model with `vocab_size` ids.
GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t vocab_size,
                               std::vector<int32_t> stop_ids);

// Outlives the HTTP server, and borrows the tokenizer. Handlers compile grammars on the worker
// threads of the server. The first use prepares the vocabulary.
class Grammars {
 public:
  // `space`: white space in constrained JSON, for requests that do not set it.
  Grammars(const Tokenizer& tokenizer, int64_t vocab_size, std::vector<int32_t> stop_ids,
           JsonSpace space = JsonSpace::kAny)
      : tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        stop_ids_(std::move(stop_ids)),
        space_(space) {}

  // Throws the errors of GrammarCache::Get.
  std::shared_ptr<const ReadyGrammar> Compile(const GrammarSource& source);
  JsonSpace space() const { return space_; }

 private:
  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const std::vector<int32_t> stop_ids_;
  const JsonSpace space_;
  std::once_flag prepared_;
  std::unique_ptr<GrammarCache> cache_;
};

}  // namespace switchyard
