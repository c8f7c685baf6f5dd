#include "engine/speculative/ngram_drafter.h"

#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <vector>

#include "engine/rank_grammars.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class NgramDrafterTest : public ::testing::Test {
 protected:
  NgramDrafterTest() : sequence_(Request()) { sequence_.computed = sequence_.length(); }

  static EngineRequest Request() {
    EngineRequest request{.id = 1};
    for (int32_t i = 0; i < 60; ++i) request.input_ids.push_back(i % 20);
    return request;
  }
  // The drafts after a step that sampled `tokens`. The row of the last token is not computed yet.
  // `others`: number of other sequences in the step.
  std::vector<int32_t> After(std::vector<int32_t> tokens, int64_t limit = 8, size_t others = 0) {
    const bool decoding = sequence_.output_length() > 0;
    sequence_.drafts.clear();
    const auto rows = std::ssize(tokens);
    sequence_.tokens.insert(sequence_.tokens.end(), tokens.begin(), tokens.end());
    const DraftPart part{.sequence = &sequence_,
                         .begin = sequence_.length() - 1 - rows,
                         .rows = rows,
                         .decoding = decoding,
                         .wanted = limit};
    std::vector<DraftPart> parts = {part};
    for (size_t i = 0; i < others; ++i) {
      if (i == others_.size()) others_.push_back(std::make_unique<Sequence>(Request()));
      parts.push_back({.sequence = others_[i].get(), .wanted = limit});
    }
    drafter_.Draft(parts, limit);
    return sequence_.drafts;
  }

  Sequence sequence_;
  std::vector<std::unique_ptr<Sequence>> others_;
  NgramDrafter drafter_;
};

// The prompt repeats 20 tokens, so the n-grams are long.
TEST_F(NgramDrafterTest, LongRepetitionsGetTheMostDrafts) {
  EXPECT_THAT(After({0}, 6), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(After({1, 2, 3, 4, 5, 6, 7}), SizeIs(8));
}

TEST_F(NgramDrafterTest, ShortRepetitionsGetFewDrafts) {
  After({0});
  EXPECT_THAT(After({1, 2, 30}), IsEmpty());  // no such text
  EXPECT_THAT(After({3}), IsEmpty());
  const auto few = After({4}).size();  // 3 and 4 occurred before
  EXPECT_GE(few, 1u);
  EXPECT_LE(few, 3u);
}

TEST_F(NgramDrafterTest, RejectedDraftsAreFollowedByFewer) {
  EXPECT_THAT(After({0}), Not(IsEmpty()));
  size_t drafts = 0;
  for (int32_t i = 0; i < 40; ++i) {
    After({30 + i});  // nothing follows this token
    // Each step samples one token, as if the first draft were wrong.
    for (int32_t token = 1; token < 10; ++token) drafts += After({token}).size();
    if (i == 19) drafts = 0;
  }
  EXPECT_LE(drafts, 20u);
}

// Rows of drafts take longer if many sequences decode.
TEST_F(NgramDrafterTest, LargeBatchesGetFewerDrafts) {
  After({0});
  After({30});
  After({3});
  const size_t alone = After({4}).size();
  After({30});
  After({3});
  EXPECT_LT(After({4}, 8, /*others=*/31).size(), alone);
}

// The vocabulary has the letters a to t. The grammar allows a to e only.
TEST_F(NgramDrafterTest, DraftsThatTheGrammarForbidsAreDropped) {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < 20; ++id)
    vocabulary.tokens.push_back(std::string(1, static_cast<char>('a' + id)));
  vocabulary.tokens.push_back("");
  vocabulary.stop_ids = {20};
  const TokenTable table(vocabulary);
  std::promise<std::shared_ptr<const CompiledGrammar>> compiled;
  compiled.set_value(CompileGrammar(RegexGrammar("[a-e]+"), table));
  sequence_.grammar = std::make_unique<SequenceGrammar>(compiled.get_future().share());
  std::vector<uint32_t> mask(MaskWords(21));
  ASSERT_TRUE(sequence_.grammar->FillMask(mask));
  for (const int32_t token : {0, 1, 2}) sequence_.grammar->Accept(token);
  EXPECT_THAT(After({0}), ElementsAre(1, 2, 3, 4));  // not 5
  EXPECT_THAT(After({1, 2}), ElementsAre(3, 4));
}

TEST_F(NgramDrafterTest, TheLimitBoundsTheDrafts) {
  EXPECT_THAT(After({0}, 2), SizeIs(2));
  EXPECT_THAT(After({1, 2, 3}, 1), SizeIs(1));
  EXPECT_THAT(After({4, 5}, 0), IsEmpty());
}

}  // namespace
}  // namespace switchyard
