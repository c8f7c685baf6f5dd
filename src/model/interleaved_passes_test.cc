// Two passes in flight, with a recorder and a chooser of replicas. The passes are interleaved at
// any operation. In some cases one of them is aborted.
#include <gtest/gtest.h>

#include "eplb/batch_replicas.h"
#include "eplb/recorder.h"
#include "model/test_decoder.h"

namespace switchyard {
namespace {

using schedule::Kind;
using schedule::Operation;

// Results of a pass on one rank. Only rank 0 has counts.
struct Result {
  std::vector<float> logits;
  std::vector<int64_t> logical, by_rank;  // counts of experts, and of ranks' slots

  bool operator==(const Result&) const = default;
};

// Returns b − a.
std::vector<int64_t> Difference(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> difference(b);
  for (size_t i = 0; i < a.size(); ++i) difference[i] -= a[i];
  return difference;
}

// A rank with a batch for each of its two passes.
class Rank {
 public:
  Rank(const Case& c, const ModelConfig& config, EpDispatchAlgorithm choice, RankComm& comm)
      : vocab_(config.vocab_size),
        recorder_({.mode = "stat"},
                  {.layers = static_cast<int>(config.num_layers()),
                   .experts = config.moe->router.num_experts,
                   .top_k = config.moe->router.top_k,
                   .redundant = c.redundant},
                  comm),
        replicas_(choice, comm.mesh,
                  ScattersTokens(MoeOptions{.a2a_backend = c.backend}, comm.mesh.shape())),
        pool_(1),
        model_(c, config, Options(c, config), comm, pool_) {
    const int group = comm.mesh.dp_rank();
    for (int i = 0; i < 2; ++i) {
      std::vector<Group> texts(c.dp);
      for (int g = 0; g < c.dp; ++g)
        for (int t = 0; t < 2 - g; ++t)
          texts[g].push_back({.tokens = Ids(5 + 3 * i + t, 40 * i + 7 * g + 11 * t)});
      texts_[i] = texts[group];
      std::vector<int64_t>& rows = group_rows_[i];
      for (const Group& of_group : texts) {
        rows.push_back(0);
        for (const Text& text : of_group) rows.back() += text.length();
      }
      sequences_.push_back(std::make_unique<Sequences>(texts_[i]));
      kv_.push_back(std::make_unique<KvStorage>(config, comm.mesh, sequences_[i]->num_pages(),
                                                kPageSize, c.kv_dtype));
      batches_[i] = sequences_[i]->Batch(0);
      batches_[i].pass = i + 1;
      batches_[i].group_tokens = batches_[i].group_logit_rows = rows;
      batches_[i].group_decode_tokens.assign(c.dp, 0);
    }
    recorder_.Start();
  }

  const std::vector<Operation>& list() const { return model_.list; }

  // Runs one pass alone.
  Result Alone(int i) {
    Begin(i);
    Pass* const only[] = {model_.passes[i].get()};
    model_.decoder.ReserveLogits(group_rows_[i], *only[0]);
    model_.decoder.Run(model_.list, only, group_rows_[i]);
    return End(i, *only[0], 0);
  }

  // Runs both passes. The second one is aborted before its operation `abort`; −1: it is not
  // aborted.
  std::vector<Result> Both(const std::vector<Operation>& list, int abort = -1) {
    for (int i = 0; i < 2; ++i) Begin(i);
    Pass* const both[] = {model_.passes[0].get(), model_.passes[1].get()};
    std::vector<int64_t> rows = group_rows_[0];
    for (size_t g = 0; g < rows.size(); ++g) rows[g] += group_rows_[1][g];
    model_.decoder.ReserveLogits(rows, *both[0]);
    int second = 0;  // operations of the second pass so far
    model_.decoder.Run(list, both, rows, {.before = [&](Pass& pass, const Operation&) {
                         if (pass.number == 2 && second++ == abort) pass.aborted = true;
                       }});
    // Logit rows are in the order in which the passes select them.
    const auto first_logits = std::ranges::find(list, Kind::kLogits, &Operation::kind);
    const bool in_order = first_logits->micro_batch == 0;
    std::vector<Result> results;
    results.push_back(End(0, *both[0], in_order ? 0 : Rows(1)));
    if (both[1]->aborted) {
      recorder_.AbortPass(2);
    } else {
      results.push_back(End(1, *both[0], in_order ? Rows(0) : 0));
    }
    return results;
  }

 private:
  ModelOptions Options(const Case& c, const ModelConfig& config) {
    ModelOptions options = TwoPassOptions(config, c);
    options.observer = &recorder_;
    options.chooser = &replicas_;
    return options;
  }
  int64_t Rows(int i) const { return std::ssize(batches_[i].logit_rows); }

  void Begin(int i) {
    model_.passes[i]->Begin(batches_[i], *kv_[i], nullptr);
    recorder_.BeginPass(i + 1, batches_[i].num_tokens());
  }
  // `first`: the pass's first row among the logits of `head`.
  Result End(int i, const Pass& head, int64_t first) {
    Result result;
    const float* logits = head.head.logits.data() + first * vocab_;
    result.logits.assign(logits, logits + Rows(i) * vocab_);
    recorder_.EndPass(i + 1, {});
    const ExpertLoad load = recorder_.Load();
    result.logical = Difference(load_.logical_count, load.logical_count);
    result.by_rank = Difference(load_.rank_count, load.rank_count);
    load_ = load;
    return result;
  }

  const int64_t vocab_;
  ExpertRecorder recorder_;
  BatchReplicas replicas_;
  ThreadPool pool_;
  TwoPasses model_;
  Group texts_[2];
  std::vector<int64_t> group_rows_[2];  // [dp]
  std::vector<std::unique_ptr<Sequences>> sequences_;
  std::vector<std::unique_ptr<KvStorage>> kv_;
  ForwardBatch batches_[2];
  ExpertLoad load_;  // load after the last pass
};

void OnRanks(const Case& c, EpDispatchAlgorithm choice, const std::function<void(Rank&)>& body) {
  SCOPED_TRACE(::testing::Message() << c);
  const ModelConfig config = LoadModelConfig(Fixture(c.fixture));
  const ModelOptions options = TwoPassOptions(config, c);
  const MeshShape mesh{.tp = c.tp, .ep = c.ep, .dp = c.dp, .dense_tp = c.dense_tp};
  const size_t bytes = RankComm::BytesPerRank(mesh) +
                       MoeSymmetricBytes(options.moe, MoeShapeOf(config, options.max_tokens), mesh);
  RunRankThreads(c.tp, bytes, [&](int r, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, r);
    Rank rank(c, config, choice, *comm);
    body(rank);
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{.fixture = "deepseek_v3", .tp = 2, .ep = 2, .redundant = 2},
                             {.fixture = "qwen3_moe",
                              .tp = 4,
                              .ep = 4,
                              .backend = "deepep",
                              .mode = "auto",
                              .dp = 2,
                              .dense_tp = 1,
                              .redundant = 4}};
  for (const auto& [backend, mode] : RowBackends())
    cases.push_back({.fixture = "deepseek_v3",
                     .tp = 2,
                     .ep = 2,
                     .backend = backend,
                     .mode = mode,
                     .redundant = 2});
  return cases;
}

TEST(InterleavedPasses, EveryOrderGivesTheResultsAndCountsOfOnePassAfterTheOther) {
  for (const Case& c : Cases()) {
    for (const auto choice : {EpDispatchAlgorithm::kDynamic, EpDispatchAlgorithm::kBalanced}) {
      OnRanks(c, choice, [&](Rank& rank) {
        const std::vector<Result> want = {rank.Alone(0), rank.Alone(1)};
        EXPECT_NE(want[0].logits, want[1].logits);
        const size_t length = rank.list().size();
        for (size_t before = 0; before <= length; ++before)
          for (const size_t burst : {size_t{1}, length})
            EXPECT_TRUE(rank.Both(Interleaved(rank.list(), before, burst)) == want)
                << "before " << before << ", burst " << burst;
      });
    }
  }
}

TEST(InterleavedPasses, AnAbortedPassChangesNoBitOfTheOtherAndRunsAgain) {
  for (const Case& c : Cases()) {
    OnRanks(c, EpDispatchAlgorithm::kDynamic, [&](Rank& rank) {
      const Result first = rank.Alone(0), second = rank.Alone(1);
      const auto length = static_cast<int>(std::ranges::count_if(
          rank.list(), [](const Operation& o) { return o.kind != Kind::kSample; }));
      for (int abort = 0; abort < length; ++abort) {
        SCOPED_TRACE(abort);
        const std::vector<Operation> list = Interleaved(rank.list(), abort % 5, 1);
        EXPECT_TRUE(rank.Both(list, abort) == std::vector{first});
        EXPECT_TRUE(rank.Alone(1) == second);
      }
      const auto both = Interleaved(rank.list(), 2, 1);
      EXPECT_TRUE(rank.Both(both) == (std::vector{first, second}));
    });
  }
}

}  // namespace
}  // namespace switchyard
