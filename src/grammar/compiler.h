// Compiles grammars for one vocabulary, within a budget, and keeps the most recent ones.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "grammar/compiled_grammar.h"
#include "grammar/source.h"
#include "grammar/vocabulary.h"

namespace switchyard {

// Compiles grammars for one vocabulary, and keeps the most recent ones.

// Limits of one grammar. A grammar beyond them is an Error kInvalid that names the limit.
struct GrammarLimits {
  size_t source_bytes = size_t{256} << 10;
  std::chrono::milliseconds time{10'000};
  size_t mask_bytes = size_t{256} << 20;  // limit for the compiled grammar's token masks
};

// A grammar that is ready for the ranks. `id` is unique in the process.
struct ReadyGrammar {
  uint64_t id = 0;
  std::shared_ptr<const CompiledGrammar> grammar;
  std::string bytes;                              // CompiledGrammar::ToBytes
  std::shared_ptr<const std::string> vocabulary;  // GrammarVocabulary::Encode; always shared

  size_t memory_bytes() const { return grammar->memory_bytes() + bytes.size(); }
};

// Compiles without a cache. Throws Error kInvalid for a grammar that is malformed, cannot be
// honoured or exceeds `limits`. Thread-safe.
std::shared_ptr<const CompiledGrammar> CompileGrammar(const GrammarSource& source,
                                                      const TokenTable& table,
                                                      const GrammarLimits& limits = {});

// A cache of compiled grammars: the least recently used ones are dropped beyond `cache_bytes`.
// Thread-safe. If two threads compile the same source, the second one waits for the first one.
class GrammarCache {
 public:
  // Throws the errors of TokenTable.
  explicit GrammarCache(const GrammarVocabulary& vocabulary, GrammarLimits limits = {},
                        size_t cache_bytes = size_t{256} << 20);
  ~GrammarCache();

  // Throws the errors of CompileGrammar.
  std::shared_ptr<const ReadyGrammar> Get(const GrammarSource& source);

  size_t bytes() const;      // size of the cached grammars
  int64_t compiled() const;  // number of compilations so far

 private:
  struct Entry;
  void Shrink();

  const TokenTable table_;
  const std::shared_ptr<const std::string> encoded_;  // the vocabulary
  const GrammarLimits limits_;
  const size_t cache_bytes_;

  mutable std::mutex mutex_;  // guards all members below; not held while a grammar is compiled
  std::map<GrammarSource, std::shared_ptr<Entry>> entries_;
  std::list<const GrammarSource*> order_;  // least recently used first; keys of entries_
  size_t bytes_ = 0;
  int64_t compiled_ = 0;
};

// Limits the compilation of a grammar by XGrammar, and collects XGrammar's messages.

// During its lifetime, the object limits compilations on the thread that constructed it. XGrammar
// calls SpendCompileBudget with the size of each token mask. Beyond a limit, this call throws Error
// kInvalid, which ends the compilation. Also records XGrammar's warnings: each one means that
// XGrammar would ignore a part of the grammar.
class CompileBudget {
 public:
  CompileBudget(std::chrono::milliseconds time, size_t mask_bytes);
  ~CompileBudget();
  CompileBudget(const CompileBudget&) = delete;
  CompileBudget& operator=(const CompileBudget&) = delete;

  void Spend(size_t bytes);
  void Warn(const std::string& message);
  // Throws Error kInvalid with the first warning, if there is one.
  void CheckWarnings() const;

  static CompileBudget* Current();  // the budget of the calling thread, or null

 private:
  const std::chrono::milliseconds time_;
  const std::chrono::steady_clock::time_point deadline_;
  const size_t mask_bytes_;
  size_t spent_ = 0;
  std::string warning_;
  CompileBudget* const outer_;
};

// Regular expressions of strings in JSON.

// Returns `pattern` in a form that XGrammar compiles for the inside of a JSON string: quotes,
// backslashes and control characters are excluded from every part of it. Throws Error kInvalid if
// the pattern is malformed, has a construct that is not supported, or matches no string without
// these characters.
std::string StringPattern(const std::string& pattern);

}  // namespace switchyard
