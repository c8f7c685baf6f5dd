#include "engine/speculative/ngram_index.h"

#include <gmock/gmock.h>

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NgramIndexTest, ATextWithoutRepetitionGivesNoGuess) {
  NgramIndex index;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(index.Guess(tokens, 4), IsEmpty());
  EXPECT_THAT(NgramIndex().Guess({}, 4), IsEmpty());
  EXPECT_THAT(NgramIndex().Guess(std::vector<int32_t>{1}, 4), IsEmpty());
  EXPECT_THAT(NgramIndex().Guess(std::vector<int32_t>{1, 1}, 4), IsEmpty());
}

TEST(NgramIndexTest, TheLongestNgramTakesPrecedence) {
  NgramIndex index;
  //                                 v--------                   v--- (later, but shorter)
  const std::vector<int32_t> tokens = {1, 2, 3, 50, 51, 9, 9, 8, 2, 3, 60, 61, 7, 1, 2, 3};
  EXPECT_THAT(index.Guess(tokens, 2), ElementsAre(50, 51));
}

TEST(NgramIndexTest, TheLatestOccurrenceTakesPrecedence) {
  NgramIndex index;
  const std::vector<int32_t> tokens = {1, 2, 30, 1, 2, 40, 5, 1, 2};
  EXPECT_THAT(index.Guess(tokens, 3), ElementsAre(40, 5, 1));
}

TEST(NgramIndexTest, ARepetitionGoesOnBeyondTheEnd) {
  NgramIndex index;
  const std::vector<int32_t> tokens = {9, 1, 2, 3, 1, 2, 3, 1, 2};
  EXPECT_THAT(index.Guess(tokens, 7), ElementsAre(3, 1, 2, 3, 1, 2, 3));
}

TEST(NgramIndexTest, TokensAreAddedAsTheyArrive) {
  NgramIndex index;
  std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_THAT(index.Guess(tokens, 2), IsEmpty());
  tokens.insert(tokens.end(), {4, 1, 2});
  EXPECT_THAT(index.Guess(tokens, 2), ElementsAre(3, 4));
  tokens.insert(tokens.end(), {7, 1, 2});
  EXPECT_THAT(index.Guess(tokens, 0), IsEmpty());
  EXPECT_THAT(index.Guess(tokens, 2), ElementsAre(7, 1));
}

}  // namespace
}  // namespace switchyard
