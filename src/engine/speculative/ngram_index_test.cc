#include "engine/speculative/ngram_index.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "engine/sampler/random.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Guess(NgramIndex& index, const std::vector<int32_t>& tokens, int64_t count) {
  return NgramIndex::Continue(tokens, index.Find(tokens), count);
}

TEST(NgramIndexTest, ATextWithoutRepetitionGivesNoGuess) {
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {}, {1}, {1, 1}}) {
    NgramIndex index;
    EXPECT_THAT(Guess(index, tokens, 4), IsEmpty());
    EXPECT_EQ(NgramIndex().Find(tokens).end, 0);
  }
}

TEST(NgramIndexTest, TheLongestNgramTakesPrecedence) {
  NgramIndex index;
  //                                 v--------                   v--- (later, but shorter)
  const std::vector<int32_t> tokens = {1, 2, 3, 50, 51, 9, 9, 8, 2, 3, 60, 61, 7, 1, 2, 3};
  EXPECT_THAT(Guess(index, tokens, 2), ElementsAre(50, 51));
}

TEST(NgramIndexTest, TheLatestOccurrenceTakesPrecedence) {
  NgramIndex index;
  const std::vector<int32_t> tokens = {1, 2, 30, 1, 2, 40, 5, 1, 2};
  EXPECT_THAT(Guess(index, tokens, 3), ElementsAre(40, 5, 1));
}

TEST(NgramIndexTest, ARepetitionGoesOnBeyondTheEnd) {
  NgramIndex index;
  const std::vector<int32_t> tokens = {9, 1, 2, 3, 1, 2, 3, 1, 2};
  EXPECT_THAT(Guess(index, tokens, 7), ElementsAre(3, 1, 2, 3, 1, 2, 3));
}

TEST(NgramIndexTest, TokensAreAddedAsTheyArrive) {
  NgramIndex index;
  std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_THAT(Guess(index, tokens, 2), IsEmpty());
  tokens.insert(tokens.end(), {4, 1, 2});
  EXPECT_THAT(Guess(index, tokens, 2), ElementsAre(3, 4));
  tokens.insert(tokens.end(), {7, 1, 2});
  EXPECT_THAT(Guess(index, tokens, 0), IsEmpty());
  EXPECT_THAT(Guess(index, tokens, 2), ElementsAre(7, 1));
}

TEST(NgramIndexTest, TheLengthOfAMatchIsThatOfTheNgram) {
  const std::vector<int32_t> tokens = {1, 2, 3, 50, 9, 1, 2, 3};
  EXPECT_EQ(NgramIndex().Find(tokens).length, 3);
  EXPECT_EQ(NgramIndex().Find(tokens).end, 3);
  EXPECT_EQ(NgramIndex().Find(std::vector<int32_t>(50, 7)).length, NgramIndex::kLongest);
}

// A slow definition: tries every earlier occurrence.
std::vector<int32_t> GuessBySearch(const std::vector<int32_t>& tokens, int64_t count) {
  const auto length = std::ssize(tokens);
  for (int64_t n = NgramIndex::kLongest; n >= NgramIndex::kShortest; --n) {
    for (int64_t at = length - 1; at >= n; --at) {
      if (n >= length || !std::equal(tokens.end() - n, tokens.end(), tokens.begin() + (at - n)))
        continue;
      std::vector<int32_t> all = tokens;
      for (int64_t i = 0; i < count; ++i) all.push_back(all[at + i]);
      return {all.begin() + length, all.end()};
    }
  }
  return {};
}

TEST(NgramIndexTest, RandomTextsGiveTheGuessesOfASearch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    NgramIndex index;
    const auto letters = static_cast<double>(3 + seed);
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 400; ++i) {
      tokens.push_back(static_cast<int32_t>(UniformDraw(seed, i) * letters));
      if (i % 3 == seed % 3) continue;  // several tokens in one call
      const std::vector<int32_t> got = Guess(index, tokens, 6);
      // Among many occurrences of a pair, only the latest ones are compared.
      if (i < 64) {
        EXPECT_EQ(got, GuessBySearch(tokens, 6)) << seed << " " << i;
      } else {
        EXPECT_EQ(got.empty(), GuessBySearch(tokens, 6).empty());
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
