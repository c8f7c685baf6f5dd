#include "engine/speculative/ngram_drafter.h"

#include <gmock/gmock.h>

#include <future>

#include "engine/rank_grammars.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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
  std::vector<int32_t> After(std::vector<int32_t> tokens, int64_t limit = 8) {
    const bool decoding = sequence_.output_length() > 0;
    sequence_.drafts.clear();
    const auto rows = std::ssize(tokens);
    sequence_.tokens.insert(sequence_.tokens.end(), tokens.begin(), tokens.end());
    const DraftPart part{.sequence = &sequence_,
                         .begin = sequence_.length() - 1 - rows,
                         .rows = rows,
                         .decoding = decoding,
                         .wanted = limit};
    drafter_.Draft({&part, 1}, limit);
    return sequence_.drafts;
  }

  Sequence sequence_;
  NgramDrafter drafter_;
};

TEST_F(NgramDrafterTest, AcceptedDraftsAreFollowedByMore) {
  EXPECT_THAT(After({0}), ElementsAre(1));
  EXPECT_THAT(After({1, 2}), ElementsAre(3, 4, 5));
  EXPECT_THAT(After({3, 4, 5, 6}), SizeIs(7));
  EXPECT_THAT(After({7, 8, 9, 10, 11, 12, 13, 14}), SizeIs(8));  // the limit
}

TEST_F(NgramDrafterTest, RejectedDraftsAreFollowedByFewer) {
  After({0});
  After({1, 2});
  EXPECT_THAT(After({3, 4, 5, 6}), SizeIs(7));
  EXPECT_THAT(After({7, 8, 30}), IsEmpty());  // no such text
  EXPECT_THAT(After({3}), IsEmpty());
  EXPECT_THAT(After({4}), ElementsAre(5));
  EXPECT_THAT(After({5, 6}), SizeIs(3));
  EXPECT_THAT(After({7, 8}), SizeIs(2));  // one of three was right
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
  EXPECT_THAT(After({0}), ElementsAre(1));
  EXPECT_THAT(After({1, 2}), ElementsAre(3, 4));  // not 5
}

TEST_F(NgramDrafterTest, TheLimitAndTheSequenceBoundTheDrafts) {
  After({0});
  EXPECT_THAT(After({1, 2}, 2), SizeIs(2));
  EXPECT_THAT(After({3, 4, 5}, 1), SizeIs(1));
  EXPECT_THAT(After({6, 7}, 0), IsEmpty());
}

}  // namespace
}  // namespace switchyard
