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
class OracleDrafter : public Drafter {
 public:
  OracleDrafter(double accuracy, int32_t vocab) : accuracy_(accuracy), vocab_(vocab) {}

  void Draft(std::span<const DraftPart> parts, int64_t limit) override {
    ++calls;
    for (const DraftPart& part : parts) {
      Sequence& sequence = *part.sequence;
      EXPECT_EQ(sequence.drafts.empty(), !sequence.drafts_forced);
      EXPECT_TRUE(!sequence.drafts_forced || part.wanted == 0);
      EXPECT_EQ(part.begin + part.rows, sequence.computed);
      const int64_t count = std::min(part.wanted, limit);
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
  const double accuracy_;
  const int32_t vocab_;
};

}  // namespace switchyard
