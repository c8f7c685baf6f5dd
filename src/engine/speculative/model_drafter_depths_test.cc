// Drafts of several MTP layers: which rows, tokens and hidden rows each of them reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/speculative/model_drafter.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kDepthVocab = 200, kMtpLayers = 3;

// Each layer guesses the token after the one that a row reads.
class LayersByDepth : public DraftForward {
 public:
  struct DepthPass {
    int32_t depth = 0;
    std::vector<int32_t> tokens, positions;
    std::vector<float> hidden;
    int64_t logit_rows = 0, decode_tokens = 0;
  };

  std::span<const float> Forward(const ForwardBatch& batch) override {
    EXPECT_FALSE(batch.own_hidden);
    EXPECT_TRUE(batch.only_logit_rows);
    DepthPass pass{.depth = batch.depth,
                   .tokens = batch.tokens,
                   .positions = batch.positions,
                   .hidden = {},
                   .logit_rows = std::ssize(batch.logit_rows),
                   .decode_tokens = batch.decode_tokens};
    for (const int32_t row : batch.hidden_rows) pass.hidden.push_back(batch.hidden[row]);
    passes.push_back(pass);
    logits_.assign(batch.logit_rows.size() * kDepthVocab, 0.0f);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i)
      logits_[i * kDepthVocab + (batch.tokens[batch.logit_rows[i]] + 1) % kDepthVocab] = 9;
    return logits_;
  }
  int64_t vocab_size() const override { return kDepthVocab; }
  bool takes_hidden() const override { return true; }
  int64_t hidden_width() const override { return 1; }
  int64_t depths() const override { return kMtpLayers; }
  const float* target_hidden() const override { return target.data(); }
  std::vector<int64_t> GatherCounts(std::span<const int64_t> mine) override {
    return {mine.begin(), mine.end()};
  }
  // Sets the hidden rows of the target's pass to their positions.
  void SetTarget(int64_t begin, int64_t rows) {
    target.clear();
    for (int64_t i = 0; i < rows; ++i) target.push_back(static_cast<float>(begin + i));
  }

  std::vector<DepthPass> passes;
  std::vector<float> target;

 private:
  std::vector<float> logits_;
};

class DraftsByDepthTest : public ::testing::Test {
 protected:
  DraftsByDepthTest() {
    EngineRequest request{.id = 1, .input_ids = {10, 11, 12, 13, 14}};
    request.sampling.temperature = 0;
    request.sampling.seed = 1;
    sequence = std::make_unique<Sequence>(std::move(request));
    sequence->cache.pages = {3, 5, 1, 7, 2, 6};
  }
  // The target has computed `rows` rows from `begin` on, and `more` tokens follow.
  void Step(int64_t begin, int64_t rows, const std::vector<int32_t>& more, int64_t wanted,
            int64_t limit, bool decoding = true) {
    layers.passes.clear();
    sequence->drafts.clear();
    sequence->tokens.insert(sequence->tokens.end(), more.begin(), more.end());
    sequence->computed = begin + rows;
    layers.SetTarget(begin, rows);
    used->Draft(std::vector<DraftPart>{{sequence.get(), 0, begin, rows, decoding, wanted}}, limit);
  }

  LayersByDepth layers;
  ModelDrafter drafter{layers, /*page_size=*/4, /*max_rows=*/20, /*max_saved_rows=*/6};
  ModelDrafter narrow{layers, /*page_size=*/4, /*max_rows=*/5, /*max_saved_rows=*/6};
  ModelDrafter* used = &drafter;
  std::unique_ptr<Sequence> sequence;
};

TEST_F(DraftsByDepthTest, EachLayerReadsTheTargetsRowsAndATokenFurtherOn) {
  Step(0, 5, {15}, 3, 3, /*decoding=*/false);
  EXPECT_THAT(sequence->drafts, ElementsAre(16, 17, 18));
  ASSERT_EQ(layers.passes.size(), 3u);
  EXPECT_THAT(layers.passes[0].tokens, ElementsAre(11, 12, 13, 14, 15));
  EXPECT_THAT(layers.passes[1].tokens, ElementsAre(12, 13, 14, 15, 16));
  EXPECT_THAT(layers.passes[2].tokens, ElementsAre(13, 14, 15, 16, 17));
  for (int32_t depth = 0; depth < kMtpLayers; ++depth) {
    EXPECT_EQ(layers.passes[depth].depth, depth);
    EXPECT_THAT(layers.passes[depth].positions, ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(layers.passes[depth].hidden, ElementsAre(0, 1, 2, 3, 4));
    EXPECT_EQ(layers.passes[depth].logit_rows, 1);
    EXPECT_EQ(layers.passes[depth].decode_tokens, 0);
  }

  // The target has taken the first draft, and then 99.
  Step(5, 2, {16, 99}, 3, 3);
  EXPECT_THAT(sequence->drafts, ElementsAre(100, 101, 102));
  EXPECT_THAT(layers.passes[0].tokens, ElementsAre(16, 99));
  EXPECT_THAT(layers.passes[0].hidden, ElementsAre(5, 6));
  EXPECT_THAT(layers.passes[1].tokens, ElementsAre(16, 99, 100));
  EXPECT_THAT(layers.passes[1].positions, ElementsAre(4, 5, 6));
  EXPECT_THAT(layers.passes[1].hidden, ElementsAre(4, 5, 6));
  EXPECT_THAT(layers.passes[2].tokens, ElementsAre(16, 99, 100, 101));
  EXPECT_THAT(layers.passes[2].hidden, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(layers.passes[2].decode_tokens, 4);
}

// All layers run for rows of prompts, and for fewer drafts than there are layers.
TEST_F(DraftsByDepthTest, LaterLayersRunWithoutDrafts) {
  Step(0, 2, {}, 0, 1, /*decoding=*/false);
  EXPECT_THAT(sequence->drafts, IsEmpty());
  ASSERT_EQ(layers.passes.size(), 3u);
  EXPECT_THAT(layers.passes[0].tokens, ElementsAre(11, 12));
  EXPECT_THAT(layers.passes[2].tokens, ElementsAre(13, 14));
  EXPECT_EQ(layers.passes[2].logit_rows, 0);
  EXPECT_THAT(sequence->saved_hidden, IsEmpty());  // all their tokens were known

  Step(2, 3, {15}, 3, 1);
  EXPECT_THAT(sequence->drafts, ElementsAre(16));
  EXPECT_THAT(layers.passes[0].tokens, ElementsAre(13, 14, 15));
  EXPECT_THAT(layers.passes[1].tokens, ElementsAre(14, 15, 16));
  EXPECT_THAT(layers.passes[2].tokens, ElementsAre(15, 16));  // the next draft is not known
  EXPECT_EQ(layers.passes[2].logit_rows, 0);
}

TEST_F(DraftsByDepthTest, RowsAreNotComputedAgainWithoutRoom) {
  used = &narrow;
  Step(0, 5, {15}, 3, 3, /*decoding=*/false);
  Step(5, 4, {16, 17, 18, 19}, 3, 3);
  EXPECT_THAT(sequence->drafts, ElementsAre(20, 21, 22));
  for (const LayersByDepth::DepthPass& pass : layers.passes)
    EXPECT_THAT(pass.positions, ElementsAre(5, 6, 7, 8));
  Step(9, 1, {20}, 3, 3);  // two rows before this one fit
  EXPECT_THAT(layers.passes.at(2).positions, ElementsAre(7, 8, 9));
}

TEST_F(DraftsByDepthTest, MissedRowsAreComputedLater) {
  Step(0, 5, {15}, 0, 0, /*decoding=*/false);
  EXPECT_THAT(layers.passes, IsEmpty());
  EXPECT_EQ(drafter.Backlog(*sequence), 5);
  Step(5, 1, {16}, 3, 3);
  EXPECT_THAT(sequence->drafts, ElementsAre(17, 18, 19));
  EXPECT_THAT(layers.passes[0].hidden, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(layers.passes[2].hidden, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(drafter.Backlog(*sequence), 0);

  // More rows than may be saved: no drafts any more.
  for (int32_t i = 0; i < 6; ++i) Step(6 + i, 1, {17 + i}, 0, 0);
  EXPECT_EQ(drafter.Backlog(*sequence), 0);
  Step(12, 1, {23}, 3, 3);
  EXPECT_THAT(sequence->drafts, IsEmpty());
}

}  // namespace
}  // namespace switchyard
