#include "server/api/copies.h"

#include <algorithm>

#include "core/error.h"
#include "server/api/request_error.h"

namespace switchyard {
namespace {

// Limits of one request, including copies. Each copy has its own copy of the prompt in the request,
// in Front and on the ranks.
constexpr int64_t kMaxGenerations = 4096, kMaxPromptTokens = int64_t{1} << 24;
// Limit of alternatives at prompt positions, over all generations of a request. They arrive in one
// event, and the server keeps them and writes them as JSON.
constexpr int64_t kMaxAlternatives = int64_t{1} << 21;

int64_t AlternativesOf(const GenerationSpec& spec) {
  const LogprobParams& wanted = spec.logprob;
  if (!wanted.enabled || wanted.start < 0) return 0;
  const int64_t positions = static_cast<int64_t>(spec.input_ids.size()) - wanted.start;
  return std::max<int64_t>(0, positions) *
         (wanted.top + static_cast<int64_t>(wanted.token_ids.size()));
}

}  // namespace

void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs) {
  try {
    front.Check(spec);
  } catch (const Error&) {
    RethrowWithClientNames(names);
  }
  if (static_cast<int64_t>(specs.size()) + n > kMaxGenerations)
    throw InvalidField("n", "n: more than {} generations in one request", kMaxGenerations);
  auto tokens = static_cast<int64_t>(spec.input_ids.size()) * n;
  for (const GenerationSpec& other : specs) tokens += static_cast<int64_t>(other.input_ids.size());
  if (tokens > kMaxPromptTokens)
    throw InvalidField("n", "n: more than {} prompt tokens in one request, including copies",
                       kMaxPromptTokens);
  int64_t alternatives = AlternativesOf(spec) * n;
  for (const GenerationSpec& other : specs) alternatives += AlternativesOf(other);
  if (alternatives > kMaxAlternatives)
    throw Invalid(
        "more than {} alternative tokens at prompt positions in one request, including copies: "
        "request "
        "fewer alternatives or a later logprob_start_len",
        kMaxAlternatives);
  for (int64_t copy = 0; copy < n; ++copy) {
    specs.push_back(spec);
    specs.back().copy = static_cast<int32_t>(copy);
    if (spec.sampling.seed) specs.back().sampling.seed = *spec.sampling.seed + copy;
  }
}

}  // namespace switchyard
