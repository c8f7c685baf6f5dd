// A pass in several rounds, with one combine for all rounds or with one in each round
// (DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ): outputs, exchanges, batches in flight, and errors.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/dispatchers/test_exchange.h"
#include "moe/layer.h"
#include "moe/reference.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int64_t kHidden = 96;
constexpr int kExperts = 10, kTopK = 3;
const ExchangeKind kDeepEp = {"deepep", "normal"};

TestLayer SmallLayer() {
  return TestLayer(
      {.hidden = kHidden, .intermediate = 64, .num_experts = kExperts, .top_k = kTopK});
}

MoeOptions WithRounds(MoeOptions options, int64_t tokens, bool combine_in_rounds) {
  options.long_seq_per_round_tokens = tokens;
  options.combine_long_seq = combine_in_rounds;
  return options;
}

// Tokens of all ranks: each rank has a different number of tokens, and one rank has none. Some
// slots have no expert, and no slot of the first token has one.
struct RaggedBatch {
  std::vector<int64_t> begin;  // [P + 1] tokens [begin[r], begin[r + 1]) belong to rank r
  SomeTokens tokens;

  RaggedBatch(int ranks, int64_t most, unsigned seed)
      : begin(RandomBegins(ranks, most, seed)),
        tokens(SomeTokens::Random(begin.back(), kExperts, kTopK, kHidden, seed)) {
    std::fill_n(tokens.topk.ids.begin(), kTopK, -1);
  }
  Range Of(int rank) const { return {begin[rank], begin[rank + 1]}; }
  int64_t longest() const {
    int64_t most = 0;
    for (size_t r = 1; r < begin.size(); ++r) most = std::max(most, begin[r] - begin[r - 1]);
    return most;
  }

 private:
  static std::vector<int64_t> RandomBegins(int ranks, int64_t most, unsigned seed) {
    kernels::Random random(seed);
    const int64_t empty = random.Below(ranks);
    std::vector<int64_t> begin(1, 0);
    for (int r = 0; r < ranks; ++r)
      begin.push_back(begin.back() + (r == empty ? 0 : 2 + random.Below(most - 1)));
    return begin;
  }
};

// The tokens of one rank, in the rounds that the dispatcher needs for the batch.
class BatchInRounds {
 public:
  BatchInRounds(const ExchangeRank& rank, const RaggedBatch& all)
      : rank_(rank),
        all_(all),
        own_(all.Of(rank.ep_rank)),
        capacity_(rank.moe.dispatcher().MaxTokens(false)),
        rounds_(CeilDiv(all.longest(), capacity_)),
        combines_once_(rounds_ > 1 &&
                       all.longest() <= rank.moe.dispatcher().MaxCombineTokens(false)),
        y_(own_.size() * kHidden, NAN) {}

  bool combines_once() const { return combines_once_; }
  bool done() const { return done_ == rounds_; }
  const std::vector<float>& y() const { return y_; }

  // Runs the next round. It includes a combine, unless one combine covers all rounds.
  void Round() {
    const int64_t first = done_++ * capacity_;
    const auto token = [&](int64_t t) { return std::min(own_.end, own_.begin + t); };
    const Range part{token(first), token(first + capacity_)};
    DispatchHandle handle;
    if (batch_) handle = std::move(batch_->handle);
    batch_.emplace(all_.tokens, part);
    batch_->handle = std::move(handle);
    batch_->handle.round = combines_once_ ? RoundPlace{first, done()} : RoundPlace{};
    batch_->Begin(rank_.moe);
    batch_->Compute(rank_.moe, rank_.block);
    if (combines_once_) return;
    batch_->End(rank_.moe, rank_.block);
    std::ranges::copy(batch_->y, y_.begin() + (part.begin - own_.begin) * kHidden);
  }
  void End() {
    if (combines_once_) rank_.moe.dispatcher().EndCombine(&batch_->handle, y_.data());
  }
  void RunAll() {
    while (!done()) Round();
    End();
  }

 private:
  const ExchangeRank& rank_;
  const RaggedBatch& all_;
  const Range own_;
  const int64_t capacity_, rounds_;
  const bool combines_once_;
  int64_t done_ = 0;
  std::optional<ExchangeBatch> batch_;
  std::vector<float> y_;
};

void RunRanks(const MoeOptions& options, const TestLayer& layer, int ranks, int64_t longest,
              const std::function<void(const ExchangeRank&)>& body, int ranks_per_host = 0) {
  RunExchangeRanks(options, layer, {ranks, ranks}, ranks * longest, body,
                   {std::chrono::seconds(60)}, ranks_per_host);
}

// Outputs of all ranks' tokens.
std::vector<float> OutputsOf(const MoeOptions& options, const TestLayer& layer, int ranks,
                             const RaggedBatch& batch, int ranks_per_host = 0) {
  std::vector<float> all(batch.tokens.x.size(), NAN);
  const auto body = [&](const ExchangeRank& rank) {
    BatchInRounds mine(rank, batch);
    EXPECT_EQ(mine.combines_once(), !options.combine_long_seq);
    mine.RunAll();
    std::ranges::copy(mine.y(), all.begin() + batch.Of(rank.ep_rank).begin * kHidden);
  };
  RunRanks(options, layer, ranks, batch.longest(), body, ranks_per_host);
  return all;
}

// Outputs of one round on one rank.
std::vector<float> PlainOutputs(RowFormat format, const TestLayer& layer,
                                const SomeTokens& tokens) {
  return RunExchange(kDeepEp.Options(format), layer, {1, 1}, {tokens})[0][0];
}

TEST(CombineRoundsTest, OutputsAreBitwiseThoseOfOneRound) {
  const TestLayer layer = SmallLayer();
  const std::array formats = {RowFormat{DType::kF32}, RowFormat{DType::kBF16},
                              RowFormat{DType::kBF16, true}};
  for (unsigned seed = 1; seed <= 9; ++seed) {
    kernels::Random random(100 + seed);
    const int ranks = random.Pick({3, 4, 5, 8});
    const RowFormat format = formats[seed % formats.size()];
    const RaggedBatch batch(ranks, 12, seed);
    const int64_t per_round = 1 + random.Below(batch.longest() / 2);
    SCOPED_TRACE(fmt::format("seed {}, {} ranks, {} of {} tokens per round", seed, ranks, per_round,
                             batch.longest()));
    const std::vector<float> want = PlainOutputs(format, layer, batch.tokens);
    std::vector<float> reference(want.size());
    RoutedReference(layer.config, layer.whole, format, batch.tokens.x.data(), batch.tokens.topk,
                    reference.data());
    EXPECT_LT(RelativeError(want, reference), format.dtype == DType::kF32 ? 1e-5 : 1.2e-2);
    for (const bool in_rounds : {false, true}) {
      const MoeOptions options = WithRounds(kDeepEp.Options(format), per_round, in_rounds);
      EXPECT_TRUE(SameBits(OutputsOf(options, layer, ranks, batch), want))
          << "combine in rounds: " << in_rounds;
    }
  }
}

TEST(CombineRoundsTest, OfSeveralHostsAndByRankToo) {
  const TestLayer layer = SmallLayer();
  const RaggedBatch batch(4, 12, 11);
  for (const std::string rows : {"slot", "rank"}) {
    MoeOptions options = kDeepEp.Options({DType::kBF16});
    options.combine_rows = rows;
    const auto want =
        OutputsOf(WithRounds(options, 2, /*combine_in_rounds=*/true), layer, 4, batch);
    for (const int ranks_per_host : {0, 2})
      EXPECT_TRUE(SameBits(OutputsOf(WithRounds(options, 2, /*combine_in_rounds=*/false), layer, 4,
                                     batch, ranks_per_host),
                           want))
          << rows << ", " << ranks_per_host << " ranks per host";
  }
}

TEST(CombineRoundsTest, TwoBatchesInFlightEndInEitherOrder) {
  const TestLayer layer = SmallLayer();
  const std::array batches = {RaggedBatch(4, 12, 21), RaggedBatch(4, 9, 22)};
  const std::array want = {PlainOutputs({}, layer, batches[0].tokens),
                           PlainOutputs({}, layer, batches[1].tokens)};
  const int64_t longest = std::max(batches[0].longest(), batches[1].longest());
  for (const int last : {0, 1}) {
    RunRanks(
        WithRounds(kDeepEp.Options(), 2, /*combine_in_rounds=*/false), layer, 4, longest,
        [&](const ExchangeRank& rank) {
          for (int repeat = 0; repeat < 2; ++repeat) {
            std::array<BatchInRounds, 2> mine = {BatchInRounds(rank, batches[0]),
                                                 BatchInRounds(rank, batches[1])};
            while (!mine[0].done() || !mine[1].done())
              for (BatchInRounds& batch : mine)
                if (!batch.done()) batch.Round();
            mine[1 - last].End();
            mine[last].End();
            for (const int i : {0, 1})
              EXPECT_TRUE(SameBits(mine[i].y().data(),
                                   want[i].data() + batches[i].Of(rank.ep_rank).begin * kHidden,
                                   static_cast<int64_t>(mine[i].y().size())))
                  << "batch " << i << " on rank " << rank.ep_rank;
          }
        });
  }
}

// Passes of a layer, with empty attention groups, prompt and decode rows, and MoE-TP.
TEST(CombineRoundsTest, LayersHaveTheSameBitsWithBothSettings) {
  for (const bool no_experts : {false, true}) {
    const TestLayer layer(
        {.hidden = 96, .intermediate = 96, .shared = true, .no_experts = no_experts});
    for (const MeshShape& mesh :
         {MeshShape{.tp = 4, .ep = 4, .dp = 4}, MeshShape{.tp = 6, .ep = 2, .dp = 3},
          MeshShape{.tp = 8, .ep = 8}}) {
      std::vector<TestPass> passes = SpreadPasses({41, 3, 22}, mesh.dp, /*decode=*/false);
      for (TestPass& pass : passes)
        for (int g = 0; g < mesh.dp; ++g) pass.decoding[g] = pass.tokens[g] / 3;
      for (const ExchangeKind& kind :
           {kDeepEp, ExchangeKind{"deepep", "auto"}, ExchangeKind{"mooncake", "normal"}}) {
        SCOPED_TRACE(fmt::format("{} tp {} ep {}", NameOf(kind), mesh.tp, mesh.ep));
        const MoeOptions options = kind.Options({}, /*capacity=*/2);
        const auto once = RunPasses(layer, WithRounds(options, 2, false), mesh, passes);
        EXPECT_TRUE(SameBits(RunPasses(layer, WithRounds(options, 2, true), mesh, passes), once));
        EXPECT_LT(RelativeError(once, ReferencePasses(layer, options, passes)), 1e-5);
      }
    }
  }
}

// Returns the numbers of dispatches and of combines in one pass of 600 tokens on three ranks.
std::pair<int, int> ExchangesOfPass(const MoeOptions& options, const TestLayer& layer,
                                    std::vector<float>* out) {
  const int64_t tokens = 600;
  int dispatches = 0, combines = 0;
  RunMoeRanks(options, layer.Shape(tokens), {3, 3}, [&](RankComm& comm, ThreadPool& pool) {
    const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                       MakeCpuMoe(options, layer.Shape(tokens), comm, pool));
    std::vector<float> mine(tokens * layer.spec.hidden, NAN);
    const auto state = moe.MakeState();
    RunStages(moe, *state, layer.Hidden(tokens).data(), {&tokens, 1}, /*decode=*/false, mine.data(),
              [&](MoeStage stage) {
                if (comm.mesh.rank() != 0) return;
                if (stage == MoeStage::kBeginDispatch) ++dispatches;
                if (stage == MoeStage::kEndCombine && state->ends_combine()) ++combines;
              });
    if (comm.mesh.rank() == 0) *out = mine;
  });
  return {dispatches, combines};
}

// A pass has 200 tokens per rank, in rounds of 64. By SGLang's formula, the minimum HCCL_BUFFSIZE
// is 2 · (106 + 200 · 2 · 1024 · 4 / 2^20) + 20 = 236 for one combine, and 2 · (106 + 64 · 3 · 1024
// · 4 / 2^20) + 20 = 234 for a combine in each round.
TEST(CombineRoundsTest, TheVariableAndTheBufferDecideTheNumberOfCombines) {
  const TestLayer layer({.hidden = 1024, .intermediate = 32, .num_experts = 6, .top_k = 4});
  std::vector<float> want, out;
  MoeOptions options = WithRounds(kDeepEp.Options(), 64, /*combine_in_rounds=*/false);
  EXPECT_THAT(ExchangesOfPass(options, layer, &want), Pair(4, 1));
  for (const auto& [mib, combines] : {std::pair(236, 1), {235, 4}, {234, 4}}) {
    options.hccl_buffer_mib = mib;
    EXPECT_THAT(ExchangesOfPass(options, layer, &out), Pair(4, combines)) << mib << " MiB";
    EXPECT_TRUE(SameBits(out, want)) << mib << " MiB";
  }
  options.hccl_buffer_mib = 233;
  EXPECT_THAT(ErrorOf([&] {
                MoeSymmetricBytes(options, layer.Shape(600), {3, 3});
              }),
              AllOf(HasSubstr("HCCL_BUFFSIZE=233"), HasSubstr("64 tokens per rank needs 234")));
  options.hccl_buffer_mib = 0;
  options.combine_long_seq = true;
  EXPECT_THAT(ExchangesOfPass(options, layer, &out), Pair(4, 4));
  EXPECT_TRUE(SameBits(out, want));
  options.combine_long_seq = false;
  options.a2a_backend = "flashinfer";  // has a combine in each round
  EXPECT_THAT(ExchangesOfPass(options, layer, &out), Pair(4, 4));
  EXPECT_TRUE(SameBits(out, want));
}

TEST(CombineRoundsTest, RoundsThatExceedTheCombineBufferAreRefused) {
  const TestLayer layer = SmallLayer();
  const SomeTokens tokens = SomeTokens::Random(4, kExperts, kTopK, kHidden, 1);
  RunRanks(WithRounds(kDeepEp.Options(), 2, /*combine_in_rounds=*/true), layer, 1, 4,
           [&](const ExchangeRank& rank) {
             EXPECT_EQ(rank.moe.dispatcher().MaxCombineTokens(false), 2);
             ExchangeBatch batch(tokens, {0, 2});
             batch.handle.round = {0, false};
             batch.Begin(rank.moe);
             batch.Compute(rank.moe, rank.block);
             batch.handle.round = {2, true};
             EXPECT_THAT(ErrorOf([&] { batch.Begin(rank.moe); }, ErrorKind::kResource),
                         HasSubstr("4 tokens on one rank exceed the capacity of one combine, 2"));
           });
}

// Rank 2 has sent its rows but does not run its experts. The next round would overwrite the rows
// that these experts read, so it must wait for rank 2.
TEST(CombineRoundsTest, TheNextRoundNamesAMissingPeer) {
  const TestLayer layer = SmallLayer();
  const RaggedBatch batch(4, 12, 31);
  const MoeOptions options = WithRounds(kDeepEp.Options(), 1, /*combine_in_rounds=*/false);
  const auto body = [&](const ExchangeRank& rank) {
    if (rank.ep_rank != 2) return BatchInRounds(rank, batch).RunAll();
    const Range own = batch.Of(2);
    ExchangeBatch first(batch.tokens, {own.begin, std::min(own.end, own.begin + 1)});
    first.handle.round = {0, false};
    first.Begin(rank.moe);
  };
  EXPECT_THAT(ErrorOf(
                  [&] {
                    RunExchangeRanks(options, layer, {4, 4}, 4 * batch.longest(), body,
                                     {std::chrono::milliseconds(1500)});
                  },
                  ErrorKind::kTimeout),
              HasSubstr("waited 1.5 s for rank 2 in deepep combine rows"));
}

TEST(CombineRoundsTest, ARankLostInALaterRoundCountsForNoRound) {
  const TestLayer layer = SmallLayer();
  const int ranks = 4, lost = 2;
  const RaggedBatch batch(ranks, 12, 41);
  MoeOptions options = WithRounds(ExchangeKind{"mooncake", "normal"}.Options(), 1, false);
  options.elastic_timeout_seconds = 3;
  SomeTokens without = batch.tokens;
  const ExpertMap experts(kExperts, ranks, false);
  for (int32_t& id : without.topk.ids)
    if (id >= 0 && experts.Owner(id) == lost) id = -1;
  const std::vector<float> want = PlainOutputs({}, layer, without);
  RunRanks(options, layer, ranks, batch.longest(), [&](const ExchangeRank& rank) {
    BatchInRounds mine(rank, batch);
    ASSERT_TRUE(mine.combines_once());
    if (rank.ep_rank == lost) return mine.Round();
    mine.RunAll();
    EXPECT_THAT(rank.moe.dispatcher().active_ranks(), ElementsAre(1, 1, 0, 1));
    EXPECT_TRUE(SameBits(mine.y().data(), want.data() + batch.Of(rank.ep_rank).begin * kHidden,
                         static_cast<int64_t>(mine.y().size())))
        << "rank " << rank.ep_rank;
  });
}

}  // namespace
}  // namespace switchyard
