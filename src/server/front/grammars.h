// The grammars of requests: compiled for the served model, and sent to the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The grammars of requests, compiled for the served model.

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

// Tracks which grammars the front has sent to the ranks.

// Decides which grammar definitions are sent to the ranks before a request. Keeps the most recently
// used grammars on the ranks, up to a number and a size. Not thread-safe. The caller must hold one
// lock for AppendDefinition and for sending the messages, so that the ranks receive them in the
// same order.
class DefinedGrammars {
 public:
  struct Limits {
    size_t count = 512;
    size_t bytes = size_t{512} << 20;  // limit of the sum of ReadyGrammar::bytes
  };
  DefinedGrammars() = default;
  explicit DefinedGrammars(Limits limits) : limits_(limits) {}

  // Appends the messages to send before a request with `grammar`. Grammars beyond the limits are
  // dropped on the ranks, the least recently used grammars first. Open requests keep the grammar
  // that they use.
  void AppendDefinition(const ReadyGrammar& grammar, std::vector<ControlMessage>* messages);

 private:
  struct Defined {
    size_t bytes = 0;
    std::list<uint64_t>::iterator place;
  };

  Limits limits_;
  bool has_vocabulary_ = false;
  std::map<uint64_t, Defined> defined_;
  std::list<uint64_t> order_;  // least recently used first
  size_t bytes_ = 0;
};

}  // namespace switchyard
