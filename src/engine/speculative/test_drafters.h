// For tests: a drafter to which the outputs are given in advance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/sampler/random.h"
#include "engine/speculative/drafter.h"

namespace switchyard {

// Proposes the tokens of `outputs`, which requests generate without drafts. Each draft is correct
// with probability `accuracy`, else an arbitrary token. All ranks of a group propose equal drafts.
// `tree_drafts`: proposes trees of at most this number of drafts, of random shapes; 0: chains.
class OracleDrafter : public Drafter {
 public:
  OracleDrafter(double accuracy, int32_t vocab, int64_t tree_drafts = 0)
      : accuracy_(accuracy), vocab_(vocab), tree_drafts_(tree_drafts) {}

  void Draft(std::span<const DraftPart> parts, int64_t limit) override {
    ++calls;
    for (const DraftPart& part : parts) {
      Sequence& sequence = *part.sequence;
      EXPECT_EQ(sequence.drafts.empty(), !sequence.drafts_forced);
      EXPECT_TRUE(!sequence.drafts_forced || part.wanted == 0);
      EXPECT_EQ(part.begin + part.rows, sequence.computed);
      const int64_t count = std::min(part.wanted, limit);
      if (tree_drafts_ > 0) {
        if (count > 0) DraftTreeOf(part, count);
        continue;
      }
      const auto known = outputs.find(sequence.request.id);
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(sequence.output_length() + i);
        int32_t token = static_cast<int32_t>(at) % vocab_;
        if (known != outputs.end() && at < known->second.size() &&
            UniformDraw(sequence.request.id, at) < accuracy_)
          token = known->second[at];
        sequence.drafts.push_back(token);
      }
    }
  }

  std::map<uint64_t, std::vector<int32_t>> outputs;
  int64_t calls = 0;

 private:
  // The token of the output after `more` further tokens; −1: not known.
  int32_t Known(const Sequence& sequence, int64_t more) const {
    const auto known = outputs.find(sequence.request.id);
    const auto at = static_cast<size_t>(sequence.output_length() + more);
    return known != outputs.end() && at < known->second.size() ? known->second[at] : -1;
  }
  void DraftTreeOf(const DraftPart& part, int64_t most_depth) {
    Sequence& s = *part.sequence;
    uint64_t draws = static_cast<uint64_t>(s.output_length()) << 16;
    const auto random = [&] { return UniformDraw(s.request.id, ++draws); };
    std::vector<int64_t> depths = {0};
    std::vector<bool> right = {true};  // whether the tokens up to the row are those of the output
    const int64_t most = std::min(tree_drafts_, part.slots);
    while (std::ssize(s.drafts) < most && draws % 256 < 200) {
      const double rows = static_cast<double>(depths.size());
      const double back = random();  // mostly the latest rows, so that paths are long
      const auto parent = static_cast<int32_t>(rows - 1 - static_cast<int64_t>(back * back * rows));
      if (depths[parent] >= most_depth) continue;
      const int32_t known = right[parent] ? Known(s, depths[parent]) : -1;
      int32_t token = static_cast<int32_t>(random() * vocab_);
      if (known >= 0 && random() < accuracy_) token = known;
      s.drafts.push_back(token);
      s.draft_parents.push_back(parent);
      depths.push_back(depths[parent] + 1);
      right.push_back(token == known);
    }
  }

  const double accuracy_;
  const int32_t vocab_;
  const int64_t tree_drafts_;
};

}  // namespace switchyard
