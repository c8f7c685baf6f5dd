// Lost ranks that are dead, stopped or only too slow, in each stage.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <latch>
#include <map>
#include <sstream>

#include "core/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/check_options.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/test_exchange.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int kRanks = 4, kExperts = 10, kTopK = 3, kBatches = 4;
constexpr int64_t kHidden = 96, kTokens = 22;
constexpr double kTimeoutSeconds = 0.75;

// The steps of a batch. A rank may be lost before any of them.
enum Step { kBeforeDispatch, kBeforeCombine, kAfterCombineBegan };

// The point at which a rank stops.
struct Leave {
  int batch = 0;
  Step step = kBeforeDispatch;
};
using Leaves = std::map<int, Leave>;  // by rank

TestLayer Layer() {
  return TestLayer(
      {.hidden = kHidden, .intermediate = 64, .num_experts = kExperts, .top_k = kTopK});
}

MoeOptions Options(const std::string& mode, const std::string& combine_rows = "slot",
                   bool in_parts = false) {
  MoeOptions options = ExchangeKind{"mooncake", mode}.Options({DType::kBF16});
  options.combine_rows = combine_rows;
  options.single_batch_overlap = in_parts;
  options.elastic_timeout_seconds = kTimeoutSeconds;
  return options;
}

SomeTokens Batch(int i) { return SomeTokens::Random(kTokens, kExperts, kTopK, kHidden, 10 + i); }

// Whether the experts of a rank with this `leave` are missing in a batch.
bool Misses(const Leave& leave, int batch) {
  return batch > leave.batch || (batch == leave.batch && leave.step < kAfterCombineBegan);
}

// Number of rows for a rank's experts in a batch, from the ranks that are not lost.
int64_t ExpectedRows(const Leaves& leaves, int batch, int ep_rank) {
  const ExpertMap experts(kExperts, kRanks, false);
  const SomeTokens tokens = Batch(batch);
  int64_t rows = 0;
  for (int source = 0; source < kRanks; ++source) {
    const auto leave = leaves.find(source);
    if (leave != leaves.end() && batch >= leave->second.batch &&
        (batch > leave->second.batch || leave->second.step == kBeforeDispatch))
      continue;
    const Range share = EvenPart(kTokens, kRanks, source);
    for (int64_t i = share.begin * kTopK; i < share.end * kTopK; ++i)
      rows += experts.LocalIdOn(ep_rank, tokens.topk.ids[i]) >= 0 ? 1 : 0;
  }
  return rows;
}

// Outputs of deepep on one rank, if no token chooses an expert of a lost rank. The outputs of
// mooncake must be bit-identical to them.
std::vector<std::vector<float>> Expected(const Leaves& leaves) {
  const ExpertMap experts(kExperts, kRanks, false);
  std::vector<SomeTokens> batches;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back(Batch(i));
    for (int32_t& id : batches.back().topk.ids) {
      const auto leave = id < 0 ? leaves.end() : leaves.find(experts.Owner(id));
      if (leave != leaves.end() && Misses(leave->second, i)) id = -1;
    }
  }
  std::vector<std::vector<float>> expected;
  for (auto& outputs : RunExchange(ExchangeKind{"deepep", "normal"}.Options({DType::kBF16}),
                                   Layer(), {1, 1}, batches))
    expected.push_back(std::move(outputs[0]));
  return expected;
}

// Runs all batches, odd ones as decode, and checks the outputs. Calls leave() at the point that
// `leaves` has for this rank. If leave() returns, the rank continues.
void RunBatches(const ExchangeRank& rank, const Leaves& leaves,
                const std::vector<std::vector<float>>& expected,
                const std::function<void()>& leave) {
  const auto step = [&](int batch, Step step) {
    const auto mine = leaves.find(rank.ep_rank);
    if (mine != leaves.end() && mine->second.batch == batch && mine->second.step == step) leave();
  };
  for (int i = 0; i < kBatches; ++i) {
    ExchangeBatch batch = rank.ShareOf(Batch(i));
    step(i, kBeforeDispatch);
    batch.Begin(rank.moe, /*decode=*/i % 2 == 1);
    step(i, kBeforeCombine);
    batch.Compute(rank.moe, rank.block);
    EXPECT_EQ(batch.grouped.num_rows, ExpectedRows(leaves, i, rank.ep_rank)) << "batch " << i;
    step(i, kAfterCombineBegan);
    batch.End(rank.moe, rank.block);
    const Range share = EvenPart(kTokens, kRanks, rank.ep_rank);
    const float* want = expected[i].data() + share.begin * kHidden;
    if (rank.moe.options().combine_rows == "rank") {
      EXPECT_LT(RelativeError(batch.y, {want, want + batch.y.size()}), 1.2e-2)
          << "batch " << i << " on rank " << rank.ep_rank;
    } else {
      EXPECT_TRUE(SameBits(batch.y.data(), want, share.size() * kHidden))
          << "batch " << i << " on rank " << rank.ep_rank;
    }
  }
}

std::vector<uint8_t> MaskWithout(const Leaves& leaves) {
  std::vector<uint8_t> mask(kRanks, 1);
  for (const auto& [rank, leave] : leaves) mask[rank] = 0;
  return mask;
}

class Left : public std::exception {};

// The ranks of `leaves` end their threads; the others finish all batches with the same mask.
void ExpectOthersFinish(const std::string& mode, const Leaves& leaves,
                        const std::string& combine_rows = "slot", bool in_parts = false) {
  SCOPED_TRACE(mode + " " + combine_rows);
  const auto expected = Expected(leaves);
  RunExchangeRanks(Options(mode, combine_rows, in_parts), Layer(), {kRanks, kRanks}, kTokens,
                   [&](const ExchangeRank& rank) {
                     try {
                       RunBatches(rank, leaves, expected, [] { throw Left(); });
                     } catch (const Left&) {
                       return;
                     }
                     EXPECT_THAT(rank.moe.dispatcher().active_ranks(),
                                 ElementsAreArray(MaskWithout(leaves)));
                   });
}

TEST(MooncakeTest, AllRanksAreActiveWhereNoneIsLost) { ExpectOthersFinish("auto", {}); }

TEST(MooncakeTest, OthersContinueWithoutARankLostBeforeDispatch) {
  for (const std::string mode : {"normal", "low_latency"})
    ExpectOthersFinish(mode, {{1, {1, kBeforeDispatch}}});
}

TEST(MooncakeTest, OthersContinueWithoutARankLostBetweenDispatchAndCombine) {
  for (const std::string mode : {"normal", "low_latency"})
    ExpectOthersFinish(mode, {{0, {1, kBeforeCombine}}});
}

TEST(MooncakeTest, WhatALostRankHadFinishedCounts) {
  ExpectOthersFinish("auto", {{3, {1, kAfterCombineBegan}}});
}

TEST(MooncakeTest, SumsByRankContinueWithoutALostRank) {
  for (const Step step : {kBeforeDispatch, kBeforeCombine, kAfterCombineBegan})
    ExpectOthersFinish("auto", {{2, {1, step}}}, "rank");
}

// In single-batch overlap, a rank commits each part of its outputs separately.
TEST(MooncakeTest, OutputsInPartsContinueWithoutALostRank) {
  for (const std::string mode : {"normal", "low_latency"})
    for (const Step step : {kBeforeDispatch, kBeforeCombine, kAfterCombineBegan})
      ExpectOthersFinish(mode, {{1, {1, step}}}, "slot", /*in_parts=*/true);
}

TEST(MooncakeTest, TwoRanksLostAtOnce) {
  ExpectOthersFinish("normal", {{0, {1, kBeforeDispatch}}, {2, {1, kBeforeDispatch}}});
}

TEST(MooncakeTest, RanksLostOneAfterTheOtherUntilOneIsLeft) {
  ExpectOthersFinish(
      "auto", {{3, {0, kBeforeDispatch}}, {0, {1, kBeforeCombine}}, {2, {2, kBeforeDispatch}}});
}

TEST(MooncakeTest, TheLogNamesTheLostRankAndTheStage) {
  std::ostringstream lines;
  {
    const LogCapture capture(lines);
    ExpectOthersFinish("normal", {{1, {2, kBeforeCombine}}});
  }
  for (const int rank : {0, 2, 3})
    EXPECT_THAT(lines.str(), HasSubstr(fmt::format("rank {} continues without rank 1", rank)));
  EXPECT_THAT(lines.str(),
              AllOf(HasSubstr("combine rows in 0.75 s"), HasSubstr("3 of 4 EP ranks")));
}

TEST(MooncakeTest, ARankIsLostForAllBatchesInFlight) {
  const Leaves leaves = {{2, {0, kBeforeCombine}}};
  const auto expected = Expected(leaves);
  RunExchangeRanks(
      Options("normal"), Layer(), {kRanks, kRanks}, kTokens, [&](const ExchangeRank& rank) {
        ExchangeBatch a = rank.ShareOf(Batch(0)), b = rank.ShareOf(Batch(1));
        a.Begin(rank.moe);
        if (rank.ep_rank == 2) return;
        b.Begin(rank.moe);  // detects the lost rank
        for (ExchangeBatch* batch : {&a, &b}) batch->Compute(rank.moe, rank.block);
        for (ExchangeBatch* batch : {&b, &a}) batch->End(rank.moe, rank.block);
        const Range share = EvenPart(kTokens, kRanks, rank.ep_rank);
        for (const auto& [batch, i] : {std::pair{&a, 0}, {&b, 1}})
          EXPECT_TRUE(SameBits(batch->y.data(), expected[i].data() + share.begin * kHidden,
                               share.size() * kHidden))
              << "batch " << i << " on rank " << rank.ep_rank;
        EXPECT_THAT(rank.moe.dispatcher().active_ranks(), ElementsAre(1, 1, 0, 1));
      });
}

// The late rank stalls until the others have finished. It must then fail.
void ExpectLateRankFails(const std::string& mode, Step step) {
  SCOPED_TRACE(fmt::format("{} step {}", mode, static_cast<int>(step)));
  const Leaves leaves = {{1, {1, step}}};
  const auto expected = Expected(leaves);
  std::latch finished(kRanks - 1);
  RunExchangeRanks(
      Options(mode), Layer(), {kRanks, kRanks}, kTokens, [&](const ExchangeRank& rank) {
        if (rank.ep_rank != 1) {
          RunBatches(rank, leaves, expected, [] {});
          return finished.count_down();
        }
        try {
          RunBatches(rank, leaves, expected, [&] { finished.wait(); });
          ADD_FAILURE() << "rank 1 does not detect that it is lost";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kPeer);
          EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 was excluded by the other ranks"),
                                          HasSubstr("0.75 s (--elastic-ep-timeout)")));
        }
      });
}

TEST(MooncakeTest, ALateRankDetectsThatItIsLostAndStops) {
  ExpectLateRankFails("normal", kBeforeDispatch);
  ExpectLateRankFails("low_latency", kBeforeCombine);
}

TEST(MooncakeTest, TimeoutsOutOfRangeAreRefused) {
  for (const double seconds : {0.0, -1.0, 1e9, std::nan("")}) {
    MoeOptions options = Options("auto");
    options.elastic_timeout_seconds = seconds;
    try {
      CheckMoeValues(options, Layer().Shape(kTokens), {1, 1});
      ADD_FAILURE() << seconds << " s";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), HasSubstr("--elastic-ep-timeout"));
    }
  }
}

// ---- Ranks as processes, killed or stopped by signals ----

constexpr int kGood = 0, kWrong = 40, kExcluded = 41;

int RankProcess(const std::shared_ptr<SharedArena>& arena, const MoeOptions& options,
                const MeshShape& mesh, int rank, const Leaves& leaves,
                const std::vector<std::vector<float>>& expected, int signal) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const TestLayer layer = Layer();
    const auto comm = RankComm::Create(arena, mesh, rank, {std::chrono::seconds(60)});
    ThreadPool pool(1);
    const MoeLayerWeights share = layer.ShareOf(comm->mesh, /*shared_whole=*/true);
    const ExpertBlock block{.experts = share.experts};
    const auto moe = MakeCpuMoe(options, layer.Shape(kTokens), *comm, pool);
    RunBatches({*moe, block, mesh.ep, rank, 0}, leaves, expected, [&] { raise(signal); });
    return ::testing::Test::HasFailure() ? kWrong : kGood;
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kPeer ? kExcluded : kWrong;
  }
}

void ExpectOtherProcessesFinish(const std::string& mode, Step step, int signal) {
  SCOPED_TRACE(fmt::format("{} step {} signal {}", mode, static_cast<int>(step), signal));
  const Leaves leaves = {{1, {1, step}}};
  const auto expected = Expected(leaves);
  // The timeout is longer here, because process startup on a loaded machine may be delayed by more
  // than kTimeoutSeconds.
  MoeOptions options = Options(mode);
  options.elastic_timeout_seconds = 4 * kTimeoutSeconds;
  const MeshShape mesh{kRanks, kRanks};
  const auto arena =
      SharedArena::Create(kRanks, RankComm::BytesPerRank(mesh) +
                                      MoeSymmetricBytes(options, Layer().Shape(kTokens), mesh));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(RankProcess(arena, options, mesh, rank, leaves, expected, signal));
    pids.push_back(pid);
  }
  int status = 0;
  for (const int rank : {0, 2, 3}) {
    ASSERT_EQ(waitpid(pids[rank], &status, 0), pids[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kGood) << "rank " << rank;
  }
  if (signal == SIGSTOP) kill(pids[1], SIGCONT);
  ASSERT_EQ(waitpid(pids[1], &status, 0), pids[1]);
  if (signal == SIGKILL) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  } else {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExcluded);
  }
}

TEST(MooncakeProcessesTest, OthersContinueWithoutAKilledProcess) {
  ExpectOtherProcessesFinish("auto", kBeforeDispatch, SIGKILL);
  ExpectOtherProcessesFinish("normal", kBeforeCombine, SIGKILL);
}

TEST(MooncakeProcessesTest, AResumedProcessDetectsThatItIsLost) {
  ExpectOtherProcessesFinish("low_latency", kBeforeDispatch, SIGSTOP);
  ExpectOtherProcessesFinish("normal", kBeforeCombine, SIGSTOP);
}

}  // namespace
}  // namespace switchyard
