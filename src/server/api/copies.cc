#include "server/api/copies.h"

#include "server/api/request_error.h"

namespace switchyard {
namespace {

// Of one request, copies counted. Each copy has its own prompt here, in the book and on the ranks.
constexpr int64_t kMostGenerations = 4096, kMostPromptTokens = int64_t{1} << 24;

}  // namespace

void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs) {
  try {
    front.Check(spec);
  } catch (const Error&) {
    RethrowNamed(names);
  }
  if (static_cast<int64_t>(specs.size()) + n > kMostGenerations)
    throw InvalidField("n", "more than {} generations in one request", kMostGenerations);
  auto tokens = static_cast<int64_t>(spec.input_ids.size()) * n;
  for (const GenerationSpec& other : specs) tokens += static_cast<int64_t>(other.input_ids.size());
  if (tokens > kMostPromptTokens)
    throw InvalidField("n", "more than {} prompt tokens in one request, copies counted",
                       kMostPromptTokens);
  for (int64_t copy = 0; copy < n; ++copy) {
    specs.push_back(spec);
    specs.back().copy = static_cast<int32_t>(copy);
    if (spec.sampling.seed) specs.back().sampling.seed = *spec.sampling.seed + copy;
  }
}

}  // namespace switchyard
