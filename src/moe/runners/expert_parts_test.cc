// The parts of a combine: ranges of experts, and the tokens whose outputs are complete after each
// part.
#include "moe/runners/expert_parts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ExpertPartsTest, AreContiguousNearlyEqualRunsOfAllExperts) {
  for (int64_t experts = 1; experts <= 40; ++experts) {
    for (int parts = 1; parts <= std::min<int64_t>(experts, 7); ++parts) {
      const ExpertParts split(experts, parts);
      EXPECT_EQ(split.Of(parts - 1).end, experts);
      for (int part = 0; part < parts; ++part) {
        const Range run = split.Of(part);
        EXPECT_EQ(run.begin, part == 0 ? 0 : split.Of(part - 1).end);
        EXPECT_GE(run.size(), experts / parts);
        EXPECT_LE(run.size(), (experts + parts - 1) / parts);
        for (int64_t expert = run.begin; expert < run.end; ++expert)
          EXPECT_EQ(split.PartOf(expert), part) << experts << " experts, expert " << expert;
      }
    }
  }
}

std::vector<int32_t> Tokens(TokenList list) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < list.count; ++i) tokens.push_back(static_cast<int32_t>(list.At(i)));
  return tokens;
}

TEST(TokensByPartTest, SortsTokensByPartInAscendingOrder) {
  TokensByPart by_part;
  const std::vector<int> parts = {2, 0, 2, 0, 3};
  for (int repeat = 0; repeat < 2; ++repeat) {
    by_part.Sort(5, 4, [&](int64_t t) { return parts[t]; });
    EXPECT_THAT(Tokens(by_part.Of(0)), ElementsAre(1, 3));
    EXPECT_THAT(Tokens(by_part.Of(1)), IsEmpty());
    EXPECT_THAT(Tokens(by_part.Of(2)), ElementsAre(0, 2));
    EXPECT_THAT(Tokens(by_part.Of(3)), ElementsAre(4));
  }
  by_part.Sort(0, 2, [](int64_t) { return 1; });
  EXPECT_THAT(Tokens(by_part.Of(0)), IsEmpty());
  EXPECT_THAT(Tokens(by_part.Of(1)), IsEmpty());
}

TEST(TokenListTest, WithoutTokensIsTheFirstOnes) { EXPECT_THAT(Tokens({3}), ElementsAre(0, 1, 2)); }

}  // namespace
}  // namespace switchyard
