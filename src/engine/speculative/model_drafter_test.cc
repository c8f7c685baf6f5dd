#include "engine/speculative/model_drafter.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <memory>

#include "engine/rank_grammars.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int64_t kVocab = 50, kWidth = 2;
constexpr int32_t kPageSize = 4;

// An MTP layer, or a small model, that keeps its rows in pages. The logit row of token t at
// position p gives the hidden row {1000 + t, p} and a logit for the token t + 1.
class FakeDraft : public DraftForward {
 public:
  FakeDraft(bool mtp, int64_t groups) : mtp_(mtp), groups_(groups) {}

  std::span<const float> Forward(const ForwardBatch& batch) override {
    ++passes;
    tokens = batch.tokens;
    positions = batch.positions;
    decode_tokens = batch.decode_tokens;
    group_tokens = batch.group_tokens;
    may_record.push_back(batch.may_record);
    own_hidden.push_back(batch.own_hidden);
    draws_of_passes.push_back(std::ssize(batch.draws));
    given.clear();
    for (const int32_t row : batch.hidden_rows) given.push_back(batch.hidden[row * kWidth]);
    EXPECT_EQ(batch.only_logit_rows, !draws_tokens);
    for (size_t row = 0; row < tokens.size(); ++row) slots[batch.slots[row]] = tokens[row];
    hidden_.clear();
    const auto keep = [&](size_t row) {
      hidden_.push_back(static_cast<float>(1000 + tokens[row]));
      hidden_.push_back(static_cast<float>(positions[row]));
    };
    if (batch.only_logit_rows) {
      for (const int32_t row : batch.logit_rows) keep(row);
    } else {
      for (size_t row = 0; row < tokens.size(); ++row) keep(row);
    }
    logits_.assign(batch.logit_rows.size() * kVocab, 0.0f);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i)
      logits_[i * kVocab + (tokens[batch.logit_rows[i]] + 1) % kVocab] = peak;
    if (batch.draws.empty()) return logits_;
    EXPECT_EQ(batch.draws.size(), batch.logit_rows.size());
    drawn_.clear();
    for (const int32_t row : batch.logit_rows)
      drawn_.push_back(tokens[row] == fault ? -1 : TokenOf((tokens[row] + 1) % kVocab));
    return {};
  }
  bool draws() const override { return draws_tokens; }
  std::span<const int32_t> drawn() const override { return drawn_; }
  bool launches() const override { return launches_passes; }
  void Launch(const ForwardBatch& batch) override {
    EXPECT_LT(launched_.size(), 2u);
    EXPECT_EQ(batch.draws.size(), batch.logit_rows.size());
    pending.push_back(std::ssize(launched_));
    ForwardBatch known = batch;
    for (size_t row = 0; row < batch.token_rows.size(); ++row)
      if (batch.token_rows[row] >= 0)
        known.tokens[row] = std::max(0, drawn_.at(static_cast<size_t>(batch.token_rows[row])));
    Forward(known);
    launched_.push_back(drawn_);
  }
  std::span<const int32_t> Collect() override {
    collected_ = launched_.front();
    launched_.pop_front();
    return collected_;
  }
  int64_t vocab_size() const override { return kVocab; }
  int32_t TokenOf(int32_t index) const override { return (index + shift) % kVocab; }
  bool takes_hidden() const override { return mtp_; }
  int64_t hidden_width() const override { return kWidth; }
  const float* target_hidden() const override { return target.data(); }
  const float* hidden() const override { return hidden_.data(); }
  std::vector<int64_t> GatherCounts(std::span<const int64_t> mine) override {
    std::vector<int64_t> all(mine.begin(), mine.end());
    for (int64_t group = 1; group < groups_; ++group) all.insert(all.end(), mine.size(), 1);
    return all;
  }

  // Sets the hidden row of each row of the target's pass to {its index + `base`, 0}.
  void SetTarget(int64_t rows, float base) {
    target.clear();
    for (int64_t row = 0; row < rows; ++row)
      target.insert(target.end(), {base + static_cast<float>(row), 0.0f});
  }

  bool draws_tokens = false, launches_passes = false;
  std::vector<int64_t> pending;  // passes that were not collected when each pass was launched
  int32_t fault = -1;            // logits of this token's rows are not finite
  float peak = 9;                // the largest logit; the others are 0
  int32_t shift = 0;             // token of an element of a row of logits, minus its index
  int passes = 0;
  std::vector<int32_t> tokens, positions;  // arguments of the last pass
  int64_t decode_tokens = 0;
  std::vector<int64_t> group_tokens;
  std::vector<bool> may_record, own_hidden;  // values in each pass
  std::vector<int64_t> draws_of_passes;      // number of rows that the model samples in each pass
  std::vector<float> given, target;
  std::map<int32_t, int32_t> slots;

 private:
  const bool mtp_;
  const int64_t groups_;
  std::vector<float> hidden_, logits_;
  std::vector<int32_t> drawn_, collected_;
  std::deque<std::vector<int32_t>> launched_;
};

class ModelDrafterTest : public ::testing::Test {
 protected:
  void Make(bool mtp, int64_t groups = 1, int64_t max_rows = 100, int64_t saved = 6,
            bool ends_early = false, bool draws = false) {
    model = std::make_unique<FakeDraft>(mtp, groups);
    model->draws_tokens = draws;
    drafter = std::make_unique<ModelDrafter>(*model, kPageSize, max_rows, saved, ends_early);
  }
  // A sequence whose prompt was computed, and whose first token was sampled.
  std::unique_ptr<Sequence> AfterPrompt(std::vector<int32_t> tokens) {
    EngineRequest request{.id = 1, .input_ids = std::move(tokens)};
    request.sampling.temperature = 0;
    request.sampling.seed = 1;
    auto sequence = std::make_unique<Sequence>(std::move(request));
    sequence->computed = sequence->length();
    sequence->cache.pages = {3, 5, 1, 7, 2, 6};
    return sequence;
  }
  void Append(Sequence& sequence, std::vector<int32_t> tokens) {
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    sequence.computed = sequence.length() - 1;
  }

  std::unique_ptr<FakeDraft> model;
  std::unique_ptr<ModelDrafter> drafter;
};

TEST_F(ModelDrafterTest, MtpRowsTakeTheNextTokensAndTheTargetsHiddenRows) {
  Make(/*mtp=*/true);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(5, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 2, 0, 3, false, 1}}, 4);
  EXPECT_EQ(model->passes, 1);
  EXPECT_THAT(s->drafts, ElementsAre(21));
  EXPECT_EQ(s->draft_computed, 3);
  EXPECT_EQ(model->slots[12], 11);  // page 3: position 0 has the token at 1
  EXPECT_EQ(model->slots[14], 20);
}

TEST_F(ModelDrafterTest, ChainsTakeTheLayersOwnHiddenRows) {
  Make(/*mtp=*/true);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3}}, 3);
  EXPECT_THAT(s->drafts, ElementsAre(21, 22, 23));
  EXPECT_THAT(model->tokens, ElementsAre(22));  // tokens of the last pass
  EXPECT_THAT(model->positions, ElementsAre(4));
  EXPECT_THAT(model->given, ElementsAre(1021));
  EXPECT_EQ(model->decode_tokens, 1);
}

// The head of an EAGLE3 model computes logits of only some tokens, so the index of a logit is not a
// token. TokenOf converts it; here it adds 10.
TEST_F(ModelDrafterTest, DraftsAreTheTokensOfTheHeadsRows) {
  for (const auto& [draws, launches] : {std::pair{false, false}, {true, false}, {true, true}}) {
    Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/false, draws);
    model->launches_passes = launches;
    model->shift = 10;
    const auto s = AfterPrompt({10, 11, 12});
    Append(*s, {20});
    model->SetTarget(3, 100);
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 2}}, 2);
    EXPECT_THAT(s->drafts, ElementsAre(31, 42));
    EXPECT_THAT(model->tokens, ElementsAre(31));
    EXPECT_THAT(model->own_hidden, ElementsAre(false, true));
  }
}

TEST_F(ModelDrafterTest, AModelMayDrawTheDraftsItself) {
  Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/true, /*draws=*/true);
  model->fault = 22;
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 4}}, 4);
  EXPECT_THAT(s->drafts, ElementsAre(21, 22, 0, 1));  // 22 has no finite logits, so 0 is drafted
  EXPECT_THAT(model->given, ElementsAre(1022));       // the hidden row of the last pass
}

TEST_F(ModelDrafterTest, AcceptedRowsReplaceThoseOfDrafts) {
  Make(/*mtp=*/true);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3}}, 3);
  s->drafts.clear();
  Append(*s, {21, 30});  // one draft was right
  model->SetTarget(4, 200);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 3, 2, true, 1}}, 1);
  EXPECT_THAT(model->tokens, ElementsAre(21, 30));
  EXPECT_THAT(model->positions, ElementsAre(3, 4));
  EXPECT_THAT(model->given, ElementsAre(200, 201));
  EXPECT_EQ(model->decode_tokens, 2);
  EXPECT_THAT(s->drafts, ElementsAre(31));
}

TEST_F(ModelDrafterTest, HiddenRowsAreSavedWhileDraftingIsOff) {
  Make(/*mtp=*/true);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 1}}, 0);
  Append(*s, {21});
  model->SetTarget(2, 200);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 1, 3, 1, true, 1}}, 0);
  EXPECT_EQ(model->passes, 0);
  EXPECT_THAT(s->drafts, IsEmpty());
  Append(*s, {22});
  model->SetTarget(1, 300);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 4, 1, true, 1}}, 1);
  EXPECT_THAT(model->tokens, ElementsAre(11, 12, 20, 21, 22));
  EXPECT_THAT(model->given, ElementsAre(100, 101, 102, 201, 300));
  EXPECT_THAT(s->drafts, ElementsAre(23));
  EXPECT_THAT(s->saved_hidden, IsEmpty());
}

// All groups record the same passes, and only some of them may have saved rows.
TEST_F(ModelDrafterTest, APassWithSavedRowsIsNotRecorded) {
  Make(/*mtp=*/true);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 1}}, 0);
  EXPECT_EQ(drafter->Backlog(*s), 3);
  Append(*s, {21});
  model->SetTarget(1, 200);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 3, 1, true, 2}}, 2);
  EXPECT_EQ(drafter->Backlog(*s), 0);
  s->drafts.clear();
  Append(*s, {22});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 4, 1, true, 2}}, 2);
  EXPECT_THAT(model->may_record, ElementsAre(false, true, true, true));
}

TEST_F(ModelDrafterTest, ASequenceWithMissingRowsIsNotDrafted) {
  Make(/*mtp=*/true, 1, 100, /*saved=*/3);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 1}}, 0);
  Append(*s, {21});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 3, 1, true, 1}}, 0);  // more than 3 rows
  EXPECT_THAT(s->saved_hidden, IsEmpty());
  Append(*s, {22});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 4, 1, true, 1}}, 1);
  EXPECT_EQ(drafter->Backlog(*s), 0);  // the missed rows cannot be computed
  EXPECT_EQ(model->passes, 0);
  EXPECT_THAT(s->drafts, IsEmpty());
}

TEST_F(ModelDrafterTest, ASmallModelTakesTheTokensThemselves) {
  Make(/*mtp=*/false);
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 2}}, 2);
  EXPECT_THAT(s->drafts, ElementsAre(21, 22));
  EXPECT_EQ(s->draft_computed, 4);
  EXPECT_EQ(model->slots[12], 10);
  EXPECT_EQ(model->slots[15], 20);
  EXPECT_EQ(model->slots[20], 21);  // page 5
  s->drafts.clear();
  Append(*s, {21, 22, 23});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 3, 3, true, 1}}, 1);
  EXPECT_THAT(model->tokens, ElementsAre(21, 22, 23));
  EXPECT_THAT(model->positions, ElementsAre(4, 5, 6));
}

TEST_F(ModelDrafterTest, ASmallModelCatchesUpInSeveralPasses) {
  Make(/*mtp=*/false, 1, /*max_rows=*/4);
  const auto s = AfterPrompt({10, 11, 12, 13, 14, 15});
  Append(*s, {20});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 6, false, 2}}, 0);
  EXPECT_EQ(model->passes, 0);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 6, false, 2}}, 2);
  EXPECT_THAT(s->drafts, IsEmpty());
  EXPECT_EQ(s->draft_computed, 4);
  Append(*s, {21});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 6, 1, true, 2}}, 2);
  EXPECT_THAT(s->drafts, ElementsAre(22, 23));
}

TEST_F(ModelDrafterTest, AChainEndsEarlyOnceItsDraftsAreImprobable) {
  for (const auto& [groups, peak, drafts] :
       {std::tuple{1, 9.0f, 4}, {1, 4.5f, 3}, {1, 0.5f, 1}, {2, 0.5f, 4}}) {
    Make(/*mtp=*/true, groups, 100, 6, /*ends_early=*/true);
    model->peak = peak;
    const auto s = AfterPrompt({10, 11, 12});
    Append(*s, {20});
    model->SetTarget(3, 100);
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 4}}, 4);
    EXPECT_EQ(std::ssize(s->drafts), drafts) << groups << " " << peak;
    EXPECT_EQ(model->passes, drafts);
  }
}

TEST_F(ModelDrafterTest, PenaltiesAndBiasesApplyToDrafts) {
  for (const bool draws : {false, true}) {
    Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/false, draws);
    const auto s = AfterPrompt({10, 11, 12});
    Append(*s, {20});
    SamplingParams& params = s->request.sampling;
    params.logit_bias = {{22, -100.0f}, {30, 1.0f}};
    params.bad_words = {{31, 32}};
    model->SetTarget(3, 100);
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 4}}, 4);
    // 22 is forbidden after 21, and 32 after 31. Then a token without a logit of its own follows.
    EXPECT_THAT(s->drafts, ElementsAre(21, 30, 31, 30));
  }
}

// Sequences with different numbers of drafts, one of them with logits that are not finite.
TEST_F(ModelDrafterTest, PassesLaunchedAheadGiveTheSameDrafts) {
  for (const bool ahead : {false, true}) {
    Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/false, /*draws=*/true);
    model->launches_passes = ahead;
    model->fault = 27;
    const auto a = AfterPrompt({10, 11, 12}), b = AfterPrompt({13, 14}), c = AfterPrompt({15});
    Append(*a, {20});
    Append(*b, {25});
    Append(*c, {40});
    model->SetTarget(6, 100);
    drafter->Draft(std::vector<DraftPart>{{a.get(), 0, 0, 3, false, 1},
                                          {b.get(), 3, 0, 2, false, 4},
                                          {c.get(), 5, 0, 1, false, 2}},
                   4);
    EXPECT_THAT(a->drafts, ElementsAre(21));
    EXPECT_THAT(b->drafts, ElementsAre(26, 27, 0, 1));
    EXPECT_THAT(c->drafts, ElementsAre(41, 42));
    EXPECT_THAT(model->draws_of_passes, ElementsAre(3, 2, 1, 1));
    EXPECT_THAT(model->own_hidden, ElementsAre(false, true, true, true));
    EXPECT_THAT(model->given, ElementsAre(1027));
    EXPECT_THAT(model->pending, ElementsAreArray(ahead ? std::vector<int64_t>{0, 1, 1, 1}
                                                       : std::vector<int64_t>()));
  }
}

TEST_F(ModelDrafterTest, PassesWithPenaltiesAreNotLaunchedAhead) {
  Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/false, /*draws=*/true);
  model->launches_passes = true;
  const auto s = AfterPrompt({10, 11, 12});
  Append(*s, {20});
  s->request.sampling.logit_bias = {{22, -100.0f}, {30, 1.0f}};
  model->SetTarget(3, 100);
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3}}, 3);
  EXPECT_THAT(s->drafts, ElementsAre(21, 30, 31));
  EXPECT_THAT(model->pending, IsEmpty());
}

// While one sequence of a pass needs its logits on the host, the host samples all of its drafts.
// After this sequence's last draft, the model samples again.
TEST_F(ModelDrafterTest, TheHostSamplesAPassWithPenalties) {
  Make(/*mtp=*/true, 1, 100, 6, /*ends_early=*/true, /*draws=*/true);
  model->peak = 0.5f;  // improbable drafts: chains do not end early if the model samples tokens
  const auto plain = AfterPrompt({10, 11, 12}), biased = AfterPrompt({30, 31, 32});
  for (Sequence* s : {plain.get(), biased.get()}) Append(*s, {20});
  biased->request.sampling.logit_bias = {{21, -100.0f}, {41, 9.0f}};
  model->SetTarget(6, 100);
  drafter->Draft(
      std::vector<DraftPart>{{plain.get(), 0, 0, 3, false, 3}, {biased.get(), 3, 0, 3, false, 1}},
      3);
  EXPECT_THAT(plain->drafts, ElementsAre(21, 22, 23));
  EXPECT_THAT(biased->drafts, ElementsAre(41));
  EXPECT_THAT(model->draws_of_passes, ElementsAre(0, 1, 1));
}

// Five tokens from 11 to 25 (l to z), then the end of the output (7).
TEST_F(ModelDrafterTest, DraftsFollowTheGrammar) {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < kVocab; ++id)
    vocabulary.tokens.push_back(id < 26 ? std::string(1, static_cast<char>('a' + id)) : "");
  vocabulary.tokens[7] = "";
  vocabulary.stop_ids = {7};
  const TokenTable table(vocabulary);
  std::promise<std::shared_ptr<const CompiledGrammar>> compiled;
  compiled.set_value(CompileGrammar(RegexGrammar("[l-z]{5}"), table));
  const RankGrammars::Pending pending = compiled.get_future().share();
  for (const auto& [early, draws] : {std::pair{false, false}, {true, false}, {true, true}}) {
    Make(/*mtp=*/true, 1, 100, 6, early, draws);
    const auto s = AfterPrompt({10, 11, 12});
    s->grammar = std::make_unique<SequenceGrammar>(pending);
    std::vector<uint32_t> mask(MaskWords(kVocab));
    ASSERT_TRUE(s->grammar->FillMask(mask));
    s->grammar->Accept(24);
    Append(*s, {24});
    model->SetTarget(3, 100);
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 5}}, 5);
    // After 25 the model prefers 26, which has no bytes. The 15 other letters have equal logits.
    // The fifth draft ends the output.
    const std::vector<int32_t> longer = {25, 11, 12, 13, 7}, shorter = {25, 11};
    EXPECT_THAT(s->drafts, ElementsAreArray(early && !draws ? shorter : longer));
    // Drafting did not change the grammar's state, which still expects four letters.
    ASSERT_TRUE(s->grammar->FillMask(mask));
    EXPECT_TRUE(MaskAllows(mask, 11) && !MaskAllows(mask, 7) && !MaskAllows(mask, 3));
  }
}

// All ranks run the same passes, also those of a group without sequences.
TEST_F(ModelDrafterTest, AGroupWithoutSequencesRunsThePassesOfOthers) {
  Make(/*mtp=*/true, /*groups=*/2);
  drafter->Draft({}, 3);
  EXPECT_EQ(model->passes, 3);
  EXPECT_THAT(model->group_tokens, ElementsAre(0, 1));
  Make(/*mtp=*/true, /*groups=*/1);
  drafter->Draft({}, 3);
  EXPECT_EQ(model->passes, 0);
}

}  // namespace
}  // namespace switchyard
