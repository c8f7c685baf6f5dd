// Trees of drafts: the levels of a tree in the passes of the draft model.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "engine/sampler/softmax.h"
#include "engine/speculative/model_drafter.h"

namespace switchyard {
namespace {

// The indices of the `count` largest values, the largest first; the lowest index among equals.
std::vector<int32_t> Largest(std::span<const float> values, int64_t count) {
  std::vector<int32_t> best;
  const auto value_of = [&](int32_t index) { return values[index]; };
  for (int32_t i = 0; i < std::ssize(values); ++i) {
    if (std::ssize(best) == count && !(values[i] > values[best.back()])) continue;
    best.insert(std::ranges::upper_bound(best, values[i], std::ranges::greater(), value_of), i);
    if (std::ssize(best) > count) best.pop_back();
  }
  return best;
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
  std::vector<GrowingTree::Candidate> candidates(count);
  if (!AllFinite(logits)) return candidates;  // the number of rows stays as planned
  const bool constrained = IsConstrained(sequence);
  if (constrained) logits = Constrained(sequence, drafts, logits);
  std::vector<int32_t> best = Largest(logits, count);
  const float max = logits[best.front()];
  if (!std::isfinite(max)) return candidates;
  const double sum = ExpSum(logits, max);
  for (int64_t i = 0; i < count; ++i)
    candidates[i].probability = std::exp(double{logits[best[i]]} - max) / sum;
  const kernels::RowSampling sampling = SamplingOf(sequence, std::ssize(drafts));
  if (sampling.temperature > 0) {
    const int32_t sampled = sampler_.SampleRow(logits, sampling).value_or(best.front());
    const auto place = std::ranges::find(best, sampled);
    best.erase(place == best.end() ? best.end() - 1 : place);
    best.insert(best.begin(), sampled);
  }
  for (int64_t i = 0; i < count; ++i)
    candidates[i].token = constrained ? best[i] : model_.TokenOf(best[i]);
  return candidates;
}

void ModelDrafter::Expand(int64_t pass, std::span<const float> logits, Chain& chain) {
  Sequence& sequence = *chain.sequence;
  const int64_t width = model_.logit_width();
  for (size_t i = 0; i < chain.level.size(); ++i) {
    const std::vector<int32_t> drafts = chain.tree.TokensTo(chain.level[i]);
    const auto row = logits.subspan(i * width, width);
    chain.tree.AddChildren(chain.level[i], Candidates(sequence, drafts, row, chain.width));
  }
  if (pass + 1 < chain.wanted) return;
  DraftTree tree = chain.tree.Best(chain.drafts);
  sequence.drafts = std::move(tree.tokens);
  sequence.draft_parents = std::move(tree.parents);
}

}  // namespace switchyard
