#include "server/api/copies.h"

#include <algorithm>

#include "core/error.h"
#include "server/api/request_error.h"

namespace switchyard {
namespace {

// Limits of one request, including copies. Each generation has its own copy of the prompt in the
// request, in Front and on the ranks.
constexpr int64_t kMaxGenerations = 4096, kMaxPromptTokens = int64_t{1} << 24;

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
    throw InvalidField("n",
                       "n: more than {} prompt tokens in one request, counted once per generation",
                       kMaxPromptTokens);
  int64_t alternatives = CountPromptAlternatives(spec) * n;
  for (const GenerationSpec& other : specs) alternatives += CountPromptAlternatives(other);
  if (alternatives > kMaxPromptAlternatives)
    throw Invalid(
        "the request asks for log-probabilities of more than {} alternative tokens at prompt "
        "positions, summed over its generations: want fewer tokens per position, fewer "
        "generations, or a larger logprob_start_len",
        kMaxPromptAlternatives);
  for (int64_t copy = 0; copy < n; ++copy) {
    specs.push_back(spec);
    specs.back().copy = static_cast<int32_t>(copy);
    // The same on both servers of the request.
    if (specs.back().kv) specs.back().kv->key.index = static_cast<int32_t>(specs.size()) - 1;
    if (spec.sampling.seed) specs.back().sampling.seed = *spec.sampling.seed + copy;
  }
}

}  // namespace switchyard
