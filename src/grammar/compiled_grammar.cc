#include "grammar/compiled_grammar.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/check.h"
#include "core/error.h"
#include "grammar/xgrammar_impl.h"

namespace switchyard {

namespace {

// XGrammar prints the budgets of a rule before its "::=".
bool HasBudgets(const xgrammar::Grammar& grammar) {
  const std::string text = grammar.ToString();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::string_view head = line.substr(0, line.find("::="));
    if (head.find("max_tokens=") != head.npos || head.find("max_chars=") != head.npos) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl)
    : impl_(std::move(impl)), has_budgets_(HasBudgets(impl_->compiled.GetGrammar())) {}
CompiledGrammar::~CompiledGrammar() = default;

std::shared_ptr<const CompiledGrammar> CompiledGrammar::FromBytes(std::string_view bytes,
                                                                  const TokenTable& table) {
  LimitRecursion();
  auto result = xgrammar::CompiledGrammar::DeserializeJSON(std::string(bytes), table.impl().info);
  if (const auto* error = std::get_if<xgrammar::SerializationError>(&result)) {
    const char* what = std::visit([](const auto& e) { return e.what(); }, *error);
    throw Invalid("a compiled grammar is malformed: {}", what);
  }
  return std::make_shared<const CompiledGrammar>(
      std::make_unique<const Impl>(Impl{std::get<xgrammar::CompiledGrammar>(std::move(result))}));
}

std::string CompiledGrammar::ToBytes() const { return impl_->compiled.SerializeJSON(); }
size_t CompiledGrammar::memory_bytes() const { return impl_->compiled.MemorySizeBytes(); }
int64_t CompiledGrammar::vocab_size() const {
  return impl_->compiled.GetTokenizerInfo().GetVocabSize();
}

struct GrammarMatcher::Impl {
  explicit Impl(std::shared_ptr<const CompiledGrammar> compiled)
      : grammar(std::move(compiled)),
        info(grammar->impl().compiled.GetTokenizerInfo()),
        matcher(grammar->impl().compiled) {}

  bool IsStop(int32_t token) const {
    const std::vector<int32_t>& ids = info.GetStopTokenIds();
    return std::ranges::find(ids, token) != ids.end();
  }

  const std::shared_ptr<const CompiledGrammar> grammar;
  const xgrammar::TokenizerInfo info;
  xgrammar::GrammarMatcher matcher;
  std::vector<uint32_t> scratch;
  int64_t length = 0;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : impl_(std::make_unique<Impl>(std::move(grammar))) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::Accept(int32_t token) {
  Impl& m = *impl_;
  if (ended() || token < 0 || token >= m.info.GetVocabSize()) return false;
  // In every state, XGrammar's AcceptToken accepts tokens that have no bytes. A grammar allows such
  // a token only where the grammar has the token's id. So the mask decides.
  if (m.info.GetDecodedVocab()[token].empty() && !m.IsStop(token)) {
    m.scratch.resize(MaskWords(m.info.GetVocabSize()));
    FillMask(m.scratch);
    if (!MaskAllows(m.scratch, token)) return false;
  }
  if (!m.matcher.AcceptToken(token)) return false;
  ++m.length;
  return true;
}

void GrammarMatcher::Rollback(int64_t count) {
  CHECK_GE(count, 0);
  CHECK_LE(count, impl_->length);
  if (count == 0) return;
  impl_->matcher.Rollback(static_cast<int>(count));
  impl_->length -= count;
}

bool GrammarMatcher::FillMask(std::span<uint32_t> mask) {
  const int64_t vocab = impl_->info.GetVocabSize();
  CHECK(!ended());
  CHECK_EQ(std::ssize(mask), MaskWords(vocab));
  int64_t words = std::ssize(mask);
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &words;
  impl_->matcher.FillNextTokenBitmask(&tensor);
  if (vocab % 32 != 0) mask.back() &= (uint32_t{1} << (vocab % 32)) - 1;
  return std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

std::string GrammarMatcher::ForcedText() {
  CHECK(!ended());
  return impl_->matcher.FindJumpForwardString();
}

bool GrammarMatcher::CanEnd() const { return ended() || impl_->matcher.IsCompleted(); }
bool GrammarMatcher::ended() const { return impl_->matcher.IsTerminated(); }
int64_t GrammarMatcher::length() const { return impl_->length; }
const CompiledGrammar& GrammarMatcher::grammar() const { return *impl_->grammar; }

}  // namespace switchyard
