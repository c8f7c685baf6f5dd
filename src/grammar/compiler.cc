#include "grammar/compiler.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"
#include "grammar/xgrammar_impl.h"

namespace switchyard {
namespace {

xgrammar::Grammar FromSchema(const GrammarSource& source) {
  const bool any = source.space == JsonSpace::kAny;
  std::optional<std::pair<std::string, std::string>> separators;
  if (source.space == JsonSpace::kPython) separators.emplace(", ", ": ");
  if (source.space == JsonSpace::kNone) separators.emplace(",", ":");
  return xgrammar::Grammar::FromJSONSchema(source.text, any, /*indent=*/std::nullopt, separators,
                                           /*strict_mode=*/true);
}

xgrammar::Grammar FromStructuralTag(const std::string& tag, const TokenTable& table) {
  auto result = xgrammar::Grammar::FromStructuralTag(tag, table.impl().info);
  if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&result)) {
    const char* what = std::visit([](const auto& e) { return e.what(); }, *error);
    throw Invalid("{}", what);
  }
  return std::get<xgrammar::Grammar>(std::move(result));
}

xgrammar::Grammar ParseText(const GrammarSource& source, const TokenTable& table) {
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema:
      return FromSchema(source);
    case GrammarSource::Kind::kRegex:
      return xgrammar::Grammar::FromRegex(source.text);
    case GrammarSource::Kind::kEbnf:
      return xgrammar::Grammar::FromEBNF(source.text);
    case GrammarSource::Kind::kLark:
      return xgrammar::Grammar::FromLark(source.text, table.impl().info);
    case GrammarSource::Kind::kStructuralTag:
      return FromStructuralTag(source.text, table);
  }
  throw Invalid("unknown kind of grammar");
}

xgrammar::Grammar Parse(const GrammarSource& source, const TokenTable& table) {
  using xgrammar::Grammar;
  const auto tag = [&](const std::string& text) { return FromStructuralTag(text, table); };
  Grammar grammar = ParseText(source, table);
  if (!source.opening.empty()) grammar = Grammar::Concat({tag(source.opening), grammar});
  if (!source.alternative.empty()) grammar = Grammar::Union({tag(source.alternative), grammar});
  if (!source.prefix.empty()) grammar = Grammar::Concat({tag(source.prefix), grammar});
  return grammar;
}

uint64_t NewId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

std::shared_ptr<const CompiledGrammar> CompileGrammar(const GrammarSource& source,
                                                      const TokenTable& table,
                                                      const GrammarLimits& limits) {
  const size_t bytes =
      source.text.size() + source.prefix.size() + source.opening.size() + source.alternative.size();
  if (bytes > limits.source_bytes)
    throw Invalid("the grammar has {} bytes, want at most {}", bytes, limits.source_bytes);
  LimitRecursion();
  CompileBudget budget(limits.time, limits.mask_bytes);
  try {
    const xgrammar::Grammar grammar = Parse(source, table);
    budget.CheckWarnings();
    // One thread: the budget belongs to a thread, and an exception of a worker would end the
    // process.
    xgrammar::GrammarCompiler compiler(table.impl().info, /*max_threads=*/1,
                                       /*cache_enabled=*/false);
    xgrammar::CompiledGrammar compiled = compiler.CompileGrammar(grammar);
    budget.CheckWarnings();
    return std::make_shared<const CompiledGrammar>(
        std::make_unique<const CompiledGrammar::Impl>(CompiledGrammar::Impl{std::move(compiled)}));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // from XGrammar, or std::bad_alloc
    throw Invalid("the grammar cannot be compiled: {}", e.what());
  }
}

struct GrammarCache::Entry {
  std::shared_future<std::shared_ptr<const ReadyGrammar>> result;
  std::list<const GrammarSource*>::iterator place;
  size_t bytes = 0;  // 0: not compiled yet
};

GrammarCache::GrammarCache(const GrammarVocabulary& vocabulary, GrammarLimits limits,
                           size_t cache_bytes)
    : table_(vocabulary),
      encoded_(std::make_shared<const std::string>(vocabulary.Encode())),
      limits_(limits),
      cache_bytes_(cache_bytes) {}
GrammarCache::~GrammarCache() = default;

std::shared_ptr<const ReadyGrammar> GrammarCache::Get(const GrammarSource& source) {
  std::promise<std::shared_ptr<const ReadyGrammar>> promise;
  std::shared_ptr<Entry> entry;
  {
    std::unique_lock lock(mutex_);
    const auto [found, added] = entries_.try_emplace(source);
    if (!added) {
      order_.splice(order_.end(), order_, found->second->place);
      const auto result = found->second->result;
      lock.unlock();
      return result.get();
    }
    entry = found->second = std::make_shared<Entry>();
    entry->result = promise.get_future().share();
    entry->place = order_.insert(order_.end(), &found->first);
    ++compiled_;
  }
  try {
    auto ready = std::make_shared<ReadyGrammar>();
    ready->id = NewId();
    ready->grammar = CompileGrammar(source, table_, limits_);
    ready->bytes = ready->grammar->ToBytes();
    ready->vocabulary = encoded_;
    promise.set_value(ready);
    std::lock_guard lock(mutex_);
    entry->bytes = ready->memory_bytes() + source.text.size();
    bytes_ += entry->bytes;
    Shrink();
    return ready;
  } catch (...) {  // errors are not cached, since time limits depend on the machine's load
    promise.set_exception(std::current_exception());
    std::lock_guard lock(mutex_);
    order_.erase(entry->place);
    entries_.erase(source);
    throw;
  }
}

// Drops the least recently used grammars until the cache fits its limit. Keeps the most recently
// used grammar, and those that are being compiled. Requires mutex_.
void GrammarCache::Shrink() {
  for (auto place = order_.begin(); bytes_ > cache_bytes_ && place != order_.end();) {
    const auto found = entries_.find(**place);
    const size_t bytes = found->second->bytes;
    if (bytes == 0 || std::next(place) == order_.end()) {
      ++place;
      continue;
    }
    bytes_ -= bytes;
    place = order_.erase(place);
    entries_.erase(found);
  }
}

size_t GrammarCache::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t GrammarCache::compiled() const {
  std::lock_guard lock(mutex_);
  return compiled_;
}

}  // namespace switchyard
