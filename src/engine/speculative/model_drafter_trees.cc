// Trees of drafts: the levels of a tree in the passes of the draft model.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "engine/sampler/softmax.h"
#include "engine/speculative/model_drafter.h"
#include "engine/speculative/options.h"
#include "kernels/best_tokens.h"

namespace switchyard {
namespace {

static_assert(kMostTreeWidth <= kernels::kMostBestTokens);

// The children of a node, from the best tokens of its row. `exp_sum`: the result of
// SelectBestTokens. `sampled`: the token of the first place; −1: the most probable one.
std::vector<GrowingTree::Candidate> CandidatesOf(std::span<const kernels::BestToken> best,
                                                 double exp_sum, int32_t sampled) {
  std::vector<GrowingTree::Candidate> candidates(best.size());
  if (!(exp_sum > 0)) return candidates;  // the number of rows stays as planned
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < best.size(); ++i) {
    const double below_max = double{best[i].logit} - double{best.front().logit};
    candidates[i].probability = std::exp(below_max) / exp_sum;
    tokens.push_back(best[i].token);
  }
  if (sampled >= 0) {
    const auto place = std::ranges::find(tokens, sampled);
    tokens.erase(place == tokens.end() ? tokens.end() - 1 : place);
    tokens.insert(tokens.begin(), sampled);
  }
  for (size_t i = 0; i < tokens.size(); ++i) candidates[i].token = tokens[i];
  return candidates;
}

}  // namespace

void ModelDrafter::StartTree(const DraftPart& part, Chain& chain) const {
  chain.wanted = std::min({chain.wanted, part.slots, trees_.drafts});
  // Each level but the last has rows in the draft model's cache.
  chain.wanted = std::min(chain.wanted, 1 + part.slots / trees_.width);
  chain.width = trees_.width;
  chain.drafts = std::min(trees_.drafts, part.slots);
  chain.tree.node(0).row = chain.row;
  chain.level = {0};
}

void ModelDrafter::AddLevel(int64_t pass, Chain& chain, BranchSpans& spans) {
  const Sequence& sequence = *chain.sequence;
  const int64_t begin = sequence.draft_computed;  // the position of drafts of the first level
  chain.level = chain.tree.NextLevel(chain.width);
  CHECK_EQ(std::ssize(chain.level), chain.width);
  for (const int32_t index : chain.level) {
    GrowingTree::Node& node = chain.tree.node(index);
    CHECK_EQ(node.depth, pass);
    node.slot = SlotOf(sequence, begin + chain.slots++);
    node.row = static_cast<int32_t>(batch_.num_tokens());
    AddRowAt(node.slot, begin + pass - 1, node.token, chain.tree.node(node.parent).row);
    spans.Add({.row_begin = node.row,
               .rows = 1,
               .kv_len = static_cast<int32_t>(begin + pass),
               .pages = sequence.cache.pages.data(),
               .branch_begin = static_cast<int32_t>(begin)},
              chain.tree.SlotsTo(index));
    batch_.request_ids.push_back(sequence.request.id);
    batch_.logit_rows.push_back(node.row);
  }
}

std::vector<GrowingTree::Candidate> ModelDrafter::Candidates(const Sequence& sequence,
                                                             std::span<const int32_t> drafts,
                                                             std::span<const float> logits,
                                                             int64_t count) {
  std::vector<kernels::BestToken> best(count);
  if (!AllFinite(logits)) return CandidatesOf(best, 0, -1);
  const bool constrained = IsConstrained(sequence);
  if (constrained) logits = Constrained(sequence, drafts, logits);
  const auto token_of = [&](int32_t index) { return constrained ? index : model_.TokenOf(index); };
  const double exp_sum = kernels::SelectBestTokens(logits, best);
  for (kernels::BestToken& found : best) found.token = token_of(found.token);
  int32_t sampled = -1;
  const kernels::RowSampling sampling = SamplingOf(sequence, std::ssize(drafts));
  if (sampling.temperature > 0)
    if (const auto index = sampler_.SampleRow(logits, sampling)) sampled = token_of(*index);
  return CandidatesOf(best, exp_sum, sampled);
}

void ModelDrafter::Expand(int64_t pass, std::span<const float> logits, Chain& chain) {
  const Sequence& sequence = *chain.sequence;
  const int64_t width = model_.logit_width();
  for (size_t i = 0; i < chain.level.size(); ++i) {
    const std::vector<int32_t> drafts = chain.tree.TokensTo(chain.level[i]);
    const auto row = logits.subspan(i * width, width);
    chain.tree.AddChildren(chain.level[i], Candidates(sequence, drafts, row, chain.width));
  }
  EndTree(pass, chain);
}

void ModelDrafter::ExpandDrawn(int64_t pass, int64_t first, Chain& chain) {
  const kernels::BestTokenRows best = model_.best();
  CHECK_EQ(best.count, chain.width);
  const bool samples = SamplingOf(*chain.sequence, pass).temperature > 0;
  for (size_t i = 0; i < chain.level.size(); ++i) {
    const int64_t row = first + static_cast<int64_t>(i);
    const int32_t sampled = samples ? model_.drawn()[row] : -1;
    chain.tree.AddChildren(chain.level[i],
                           CandidatesOf(best.Row(row), best.exp_sums[row], sampled));
  }
  EndTree(pass, chain);
}

void ModelDrafter::EndTree(int64_t pass, Chain& chain) {
  if (pass + 1 < chain.wanted) return;
  DraftTree tree = chain.tree.Best(chain.drafts);
  chain.sequence->drafts = std::move(tree.tokens);
  chain.sequence->draft_parents = std::move(tree.parents);
}

}  // namespace switchyard
