// Trees of drafts from a draft model, compared with a search over histories of tokens.
#include <gmock/gmock.h>

#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "engine/rank_grammars.h"
#include "engine/sampler/random.h"
#include "engine/speculative/model_drafter.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

constexpr int64_t kVocab = 20;
constexpr int32_t kPageSize = 4;

// A draft model whose logits depend on the whole history of a row, which it reads through the
// sequence spans. Each hidden row is the position and a hash of the history.
class HistoryDraft : public DraftForward {
 public:
  HistoryDraft(bool mtp, int64_t groups, bool draws) : mtp_(mtp), groups_(groups), draws_(draws) {}

  // The logits after tokens. An MTP layer lacks the first token, because its rows begin with the
  // second one.
  static std::vector<float> LogitsAfter(std::span<const int32_t> tokens) {
    const uint64_t hash = HashOf(tokens);
    std::vector<float> logits(kVocab);
    for (int64_t i = 0; i < kVocab; ++i)
      logits[i] = static_cast<float>(4 * UniformDraw(hash, static_cast<uint64_t>(i)));
    return logits;
  }

  std::span<const float> Forward(const ForwardBatch& batch) override {
    ++passes;
    EXPECT_TRUE(draws_ || batch.draws.empty());
    EXPECT_EQ(batch.only_logit_rows, !draws_);
    rows.push_back(batch.num_tokens());
    for (int64_t row = 0; row < batch.num_tokens(); ++row)
      store_[batch.slots[row]] = {batch.tokens[row], batch.positions[row]};
    std::vector<float> hidden;
    logits_.clear();
    size_t next = 0;
    for (const kernels::SequenceSpan& span : batch.sequences) {
      for (int32_t row = span.row_begin; row < span.row_begin + span.rows; ++row) {
        const int32_t length = span.kv_len - (span.row_begin + span.rows - 1 - row);
        const std::vector<int32_t> history = History(span, length);
        CheckHidden(batch, row, history);
        const bool has_logits = next < batch.logit_rows.size() && batch.logit_rows[next] == row;
        if (has_logits || draws_)
          hidden.insert(hidden.end(), {static_cast<float>(length - 1), Short(HashOf(history))});
        if (!has_logits) continue;
        ++next;
        std::vector<float> own = LogitsAfter(history);
        if (history.back() == fault) own.back() = std::numeric_limits<float>::quiet_NaN();
        logits_.insert(logits_.end(), own.begin(), own.end());
      }
    }
    EXPECT_EQ(next, batch.logit_rows.size());
    hidden_ = hidden;
    if (batch.draws.empty()) return logits_;
    Draw(batch);
    return {};
  }
  bool draws() const override { return draws_; }
  std::span<const int32_t> drawn() const override { return drawn_; }
  kernels::BestTokenRows best() const override {
    return {.exp_sums = exp_sums_, .best = best_, .count = count_};
  }
  bool launches() const override { return draws_; }
  int64_t vocab_size() const override { return kVocab; }
  bool takes_hidden() const override { return mtp_; }
  int64_t hidden_width() const override { return 2; }
  const float* target_hidden() const override { return target.data(); }
  const float* hidden() const override { return hidden_.data(); }
  std::vector<int64_t> GatherCounts(std::span<const int64_t> mine) override {
    std::vector<int64_t> all(mine.begin(), mine.end());
    for (int64_t group = 1; group < groups_; ++group)
      all.insert(all.end(), mine.begin(), mine.end());
    return all;
  }

  int passes = 0, drawing_passes = 0;  // drawing: the model selected tokens itself
  int32_t fault = -1;                  // a logit after this token is not finite
  std::vector<int64_t> rows;           // of each pass
  std::vector<float> target;

 private:
  struct Entry {
    int32_t token = -1, position = -1;
  };
  static uint64_t HashOf(std::span<const int32_t> tokens) {
    uint64_t hash = 1;
    for (const int32_t token : tokens) hash = hash * 1000003 + static_cast<uint64_t>(token) + 1;
    return hash;
  }
  static float Short(uint64_t hash) { return static_cast<float>(hash % 10007); }
  // As a GPU does.
  void Draw(const ForwardBatch& batch) {
    ++drawing_passes;
    EXPECT_EQ(batch.draws.size(), batch.logit_rows.size());
    count_ = batch.best_tokens;
    drawn_.assign(batch.draws.size(), -1);
    exp_sums_.assign(batch.draws.size(), 0);
    best_.assign(batch.draws.size() * count_, {});
    for (size_t i = 0; i < batch.draws.size(); ++i) {
      const auto row = std::span(logits_).subspan(i * kVocab, kVocab);
      if (std::ranges::any_of(row, [](float x) { return !std::isfinite(x); })) continue;
      drawn_[i] = *sampler_.SampleRow(row, batch.draws[i]);
      exp_sums_[i] = kernels::SelectBestTokens(row, std::span(best_).subspan(i * count_, count_));
    }
  }
  std::vector<int32_t> History(const kernels::SequenceSpan& span, int32_t length) {
    std::vector<int32_t> history;
    for (int32_t key = 0; key < length; ++key) {
      const Entry& entry = store_[static_cast<int32_t>(span.SlotOf(key, kPageSize))];
      EXPECT_EQ(entry.position, key);
      history.push_back(entry.token);
    }
    return history;
  }
  // The hidden row of a draft is that of the row before it.
  void CheckHidden(const ForwardBatch& batch, int32_t row, std::span<const int32_t> history) {
    if (!mtp_) return;
    const float* const given = batch.hidden + 2 * int64_t{batch.hidden_rows[row]};
    if (!batch.own_hidden) {
      EXPECT_EQ(given[0], static_cast<float>(history.size() - 1));
      return;
    }
    EXPECT_EQ(given[0], static_cast<float>(history.size() - 2));
    EXPECT_EQ(given[1], Short(HashOf(history.first(history.size() - 1))));
  }

  const bool mtp_;
  const int64_t groups_;
  const bool draws_;  // as on a GPU
  std::map<int32_t, Entry> store_;
  std::vector<float> hidden_, logits_;
  Sampler sampler_{kVocab, {}};
  int32_t count_ = 0;
  std::vector<int32_t> drawn_;
  std::vector<double> exp_sums_;
  std::vector<kernels::BestToken> best_;
};

using Path = std::vector<int32_t>;

// The paths of the `count` best drafts, from logits of whole histories.
std::vector<Path> BestPaths(const Sequence& sequence, const Path& history, TreeShape shape,
                            int64_t depth, int64_t count) {
  struct Draft {
    Path path;
    double score = 1;
  };
  const auto best = [](std::vector<Draft> drafts, int64_t most) {
    std::ranges::stable_sort(drafts, std::ranges::greater(), &Draft::score);
    if (std::ssize(drafts) > most) drafts.resize(most);
    return drafts;
  };
  Sampler sampler(kVocab, {});
  const SamplingParams& params = sequence.request.sampling;
  std::vector<Draft> all, level = {{}};
  for (int64_t i = 0; i < depth; ++i) {
    std::vector<Draft> children;
    for (const Draft& parent : level) {
      Path tokens = history;
      tokens.insert(tokens.end(), parent.path.begin(), parent.path.end());
      std::vector<float> logits = HistoryDraft::LogitsAfter(tokens);
      Path output(sequence.output().begin(), sequence.output().end());
      output.insert(output.end(), parent.path.begin(), parent.path.end());
      sampler.Adjust(params, sequence.prompt(), output, logits);
      std::vector<int32_t> order(kVocab);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::ranges::greater(),
                               [&](int32_t id) { return logits[id]; });
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      std::vector<double> probabilities;
      probabilities.reserve(order.size());
      for (const int32_t id : order) probabilities.push_back(std::exp(double{logits[id]}) / sum);
      if (params.temperature > 0) {  // the sampled token comes first
        const auto drawn = static_cast<uint64_t>(sequence.output_length() + i);
        const auto row = Sampler::RowSamplingOf(params, UniformDraw(*params.seed, drawn));
        const int32_t sampled = *sampler.SampleRow(logits, row);
        std::erase(order, sampled);
        order.insert(order.begin(), sampled);
      }
      for (int64_t c = 0; c < shape.width; ++c) {
        Draft& child = children.emplace_back(parent);
        child.path.push_back(order[c]);
        child.score *= probabilities[c];
      }
    }
    for (const Draft& child : children)
      if (child.score > 0) all.push_back(child);
    level = best(children, shape.width);
  }
  std::vector<Path> paths;
  for (const Draft& draft : best(all, count)) paths.push_back(draft.path);
  std::ranges::sort(paths);
  return paths;
}

std::vector<Path> PathsOf(const Sequence& sequence) {
  const DraftTree tree{sequence.drafts, sequence.draft_parents};
  std::vector<Path> paths;
  for (int32_t row = 1; row < tree.rows(); ++row) {
    Path& path = paths.emplace_back();
    for (const int32_t at : tree.PathTo(row))
      if (at > 0) path.push_back(tree.tokens[at - 1]);
  }
  std::ranges::sort(paths);
  return paths;
}

class ModelDrafterTreesTest : public ::testing::Test {
 protected:
  void Make(bool mtp, TreeShape shape, int64_t groups = 1, bool draws = false) {
    model = std::make_unique<HistoryDraft>(mtp, groups, draws);
    drafter = std::make_unique<ModelDrafter>(*model, kPageSize, /*max_rows=*/100,
                                             /*max_saved_rows=*/6, /*ends_early=*/false,
                                             std::vector<int32_t>{}, shape);
  }
  // A sequence with a prompt of three tokens and one token of output.
  std::unique_ptr<Sequence> Started(int32_t first, std::vector<int32_t> pages, float temperature) {
    EngineRequest request{.id = 1, .input_ids = {first, 4, 5}};
    request.sampling.temperature = temperature;
    request.sampling.seed = 3;
    auto sequence = std::make_unique<Sequence>(std::move(request));
    sequence->cache.pages = std::move(pages);
    sequence->tokens.push_back(6);
    sequence->computed = 3;
    return sequence;
  }
  // Hidden rows of the target: {the position, 0}.
  void SetTarget(std::initializer_list<int> positions) {
    model->target.clear();
    for (const int position : positions)
      model->target.insert(model->target.end(), {static_cast<float>(position), 0.0f});
  }
  static Path HistoryOf(const Sequence& sequence, bool mtp) {
    return Path(sequence.tokens.begin() + (mtp ? 1 : 0), sequence.tokens.end());
  }

  std::unique_ptr<HistoryDraft> model;
  std::unique_ptr<ModelDrafter> drafter;
};

TEST_F(ModelDrafterTreesTest, ProposesTheBestDrafts) {
  for (const auto& [mtp, draws] :
       {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    for (const auto& [width, depth, drafts, slots] : {std::tuple{2, 1, 2, 8},
                                                      {2, 3, 5, 8},
                                                      {3, 2, 7, 12},
                                                      {3, 4, 12, 12},
                                                      {4, 3, 8, 12},
                                                      {2, 4, 6, 3},
                                                      {4, 4, 10, 3}}) {
      for (const float temperature : {0.0f, 0.9f}) {
        Make(mtp, {.width = width, .drafts = drafts}, 1, draws);
        const auto s = Started(3, {3, 5, 1, 7, 2, 6}, temperature);
        const auto t = Started(9, {4, 0, 8, 9, 10, 11}, temperature);
        SetTarget({0, 1, 2, 0, 1, 2});
        drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, depth, slots},
                                              {t.get(), 3, 0, 3, false, depth, slots}},
                       depth);
        const int64_t levels = std::min(depth, 1 + slots / width);
        EXPECT_EQ(model->passes, levels);
        EXPECT_EQ(model->drawing_passes, draws ? levels : 0);
        for (const Sequence* sequence : {s.get(), t.get()}) {
          EXPECT_EQ(PathsOf(*sequence), BestPaths(*sequence, HistoryOf(*sequence, mtp),
                                                  {width, drafts}, levels, std::min(drafts, slots)))
              << mtp << " " << width << " " << depth << " " << drafts << " " << temperature;
        }
      }
    }
  }
}

// After a verification the rows of the accepted path, which need not be the first ones, replace the
// rows of the tree. A model on a GPU has hidden rows of all rows.
TEST_F(ModelDrafterTreesTest, TheNextTreeFollowsTheAcceptedPath) {
  for (const auto& [mtp, draws] :
       {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    Make(mtp, {.width = 3, .drafts = 9}, 1, draws);
    const auto s = Started(3, {3, 5, 1, 7, 2, 6}, 0);
    SetTarget({0, 1, 2});
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3, 9}}, 3);
    s->tokens.insert(s->tokens.end(), {s->drafts[0], 17});
    s->drafts.clear();
    s->draft_parents.clear();
    s->computed = s->length() - 1;
    // The pass has rows of positions 3, 4 and others; those of the path are rows 1 and 4.
    SetTarget({99, 3, 99, 99, 4});
    s->kept_rows = {0, 3};
    DraftPart part{s.get(), 1, 3, 2, true, 3, 9};
    part.path = s->kept_rows;
    drafter->Draft(std::vector<DraftPart>{part}, 3);
    EXPECT_EQ(PathsOf(*s), BestPaths(*s, HistoryOf(*s, mtp), {3, 9}, 3, 9)) << mtp;
  }
}

TEST_F(ModelDrafterTreesTest, RowsThatAreNotFiniteGiveNoDrafts) {
  std::vector<Path> want;
  for (const bool draws : {false, true}) {
    Make(/*mtp=*/false, {.width = 3, .drafts = 30}, 1, draws);
    const auto s = Started(3, {3, 5, 1, 7, 2, 6}, 0);
    model->fault = BestPaths(*s, HistoryOf(*s, false), {3, 1}, 1, 1)[0][0];
    drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3, 9}}, 3);
    const std::vector<Path> paths = PathsOf(*s);
    for (const Path& path : paths)
      for (size_t i = 0; i + 1 < path.size(); ++i) EXPECT_NE(path[i], model->fault);
    EXPECT_THAT(paths, ::testing::Contains(Path{model->fault}));
    if (!draws) want = paths;
    EXPECT_EQ(paths, want);
  }
}

// The host selects the tokens of a pass in which a sequence has a constraint.
TEST_F(ModelDrafterTreesTest, TheModelSelectsTokensWhereNoConstraintApplies) {
  for (const float temperature : {0.0f, 0.9f}) {
    Make(/*mtp=*/false, {.width = 3, .drafts = 9}, 1, /*draws=*/true);
    const auto s = Started(3, {3, 5, 1, 7, 2, 6}, temperature);
    const auto t = Started(9, {4, 0, 8, 9, 10, 11}, temperature);
    t->request.sampling.logit_bias = {{2, 3.0f}};
    drafter->Draft(
        std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3, 9}, {t.get(), 3, 0, 3, false, 1, 9}},
        3);
    EXPECT_EQ(model->passes, 3);
    EXPECT_EQ(model->drawing_passes, 2);
    EXPECT_EQ(PathsOf(*s), BestPaths(*s, HistoryOf(*s, false), {3, 9}, 3, 9));
    EXPECT_EQ(PathsOf(*t), BestPaths(*t, HistoryOf(*t, false), {3, 9}, 1, 9));
  }
}

TEST_F(ModelDrafterTreesTest, PenaltiesAndBiasesApply) {
  for (const auto& [temperature, draws] : {std::pair{0.0f, false}, {0.9f, false}, {0.9f, true}}) {
    Make(/*mtp=*/true, {.width = 3, .drafts = 9}, /*groups=*/2, draws);
    const auto s = Started(3, {3, 5, 1, 7, 2, 6}, temperature);
    const auto t = Started(9, {4, 0, 8, 9, 10, 11}, temperature);
    s->request.sampling.frequency_penalty = 1.5f;
    s->request.sampling.logit_bias = {{2, 3.0f}};
    t->request.sampling.allowed_token_ids = {11, 12};
    SetTarget({0, 1, 2, 0, 1, 2});
    drafter->Draft(
        std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 3, 9}, {t.get(), 3, 0, 3, false, 2, 9}},
        3);
    EXPECT_THAT(model->rows, ::testing::ElementsAre(6, 6, 3));
    EXPECT_EQ(model->drawing_passes, 0);
    EXPECT_EQ(PathsOf(*s), BestPaths(*s, HistoryOf(*s, true), {3, 9}, 3, 9));
    EXPECT_EQ(PathsOf(*t), BestPaths(*t, HistoryOf(*t, true), {3, 9}, 2, 9));
    EXPECT_EQ(t->drafts.size(), 6u);  // two tokens, and two after each of them
  }
}

// The output is a g (6), one of the letters b to d (1 to 3), then two of them or an e, and then it
// ends (19).
TEST_F(ModelDrafterTreesTest, DraftsFollowTheGrammar) {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < kVocab; ++id)
    vocabulary.tokens.emplace_back(1, static_cast<char>('a' + id));
  vocabulary.tokens[19] = "";
  vocabulary.stop_ids = {19};
  const TokenTable table(vocabulary);
  std::promise<std::shared_ptr<const CompiledGrammar>> compiled;
  compiled.set_value(CompileGrammar(RegexGrammar("g[b-d]([b-d]{2}|e)"), table));
  const RankGrammars::Pending pending = compiled.get_future().share();
  Make(/*mtp=*/true, {.width = 4, .drafts = 60});
  const auto s = Started(3, {3, 5, 1, 7, 2, 6, 8, 9}, 0);
  s->grammar = std::make_unique<SequenceGrammar>(pending);
  std::vector<uint32_t> mask(MaskWords(kVocab));
  ASSERT_TRUE(s->grammar->FillMask(mask));
  s->grammar->Accept(6);
  SetTarget({0, 1, 2});
  drafter->Draft(std::vector<DraftPart>{{s.get(), 0, 0, 3, false, 4, 60}}, 4);
  std::map<size_t, int> lengths;
  for (const Path& path : PathsOf(*s)) {
    ++lengths[path.size()];
    for (size_t i = 0; i < path.size(); ++i) {
      const bool letter = path[i] >= 1 && path[i] <= 3;
      const bool ends = path[i] == 19 && (i == 3 || (i == 2 && path[1] == 4));
      if (i > 0 && path[i - 1] == 19) break;  // after the end any draft may follow
      EXPECT_TRUE(letter || (i == 1 && path[i] == 4) || ends) << i << " " << path[i];
    }
  }
  EXPECT_EQ(lengths[1], 3);   // the fourth token is impossible
  EXPECT_EQ(lengths[2], 12);  // b, c, d and e after each of them
  EXPECT_GE(lengths[3], 4);
  // Drafting did not change the grammar's state.
  ASSERT_TRUE(s->grammar->FillMask(mask));
  EXPECT_TRUE(MaskAllows(mask, 1) && !MaskAllows(mask, 4) && !MaskAllows(mask, 19));
}

}  // namespace
}  // namespace switchyard
