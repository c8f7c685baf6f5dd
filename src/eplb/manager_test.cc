// Counting, planning and migration of the EPLB manager, with rank threads and synthetic routers.
#include "eplb/manager.h"

#include <gmock/gmock.h>

#include <latch>
#include <mutex>

#include "core/testing.h"
#include "eplb/batch_replicas.h"
#include "eplb/test_movable.h"
#include "eplb/transfers.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 4, kExperts = 16, kRedundant = 8, kMoeLayers = 3, kTopK = 2;
const EplbShape kShape{.layers = 2 * kMoeLayers, .experts = kExperts, .redundant = kRedundant};

void OnRanks(const std::function<void(RankComm&)>& body) {
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  RunRankThreads(kRanks, RankComm::BytesPerRank(mesh) + EplbManager::BytesPerRank(mesh),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm =
                       RankComm::Create(std::move(arena), mesh, rank, {std::chrono::seconds(30)});
                   body(*comm);
                 });
}

// A rank with 40 own tokens in each pass. A token's first expert is one of `hot` experts starting
// at `first_hot`, which share a rank in the trivial placement. Its second expert is random.
struct Rank {
  Rank(const EplbOptions& options, RankComm& comm, bool sends = false)
      : manager(options, kShape, comm),
        experts(kMoeLayers, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh),
        replicas(EpDispatchAlgorithm::kBalanced, comm.mesh, /*scatters=*/true),
        random(static_cast<uint32_t>(comm.mesh.rank())) {
    experts.SetSends(sends);
    manager.Attach(&experts);
  }
  ~Rank() { manager.Detach(); }

  void Pass() {
    manager.BeginPass();
    for (const int layer : experts.layers()) {
      TopK logical{.tokens = 40, .k = kTopK}, physical;
      replicas.OnPlacement(layer, experts.PlacementOf(layer));
      for (int i = 0; i < 40 * kTopK; ++i) {
        const bool hot_slot = i % kTopK == 0 && hot > 0;
        logical.ids.push_back(static_cast<int32_t>(hot_slot ? first_hot + random.Below(hot)
                                                            : random.Below(kExperts)));
      }
      replicas.Choose({.layer = layer}, logical, &physical);
      manager.OnRoute(
          0, layer,
          {.tokens = 40, .logical = logical.ids, .physical = physical.ids, .streamed = streams});
    }
    manager.EndPass(0);
  }
  void Passes(int n) {
    for (int i = 0; i < n; ++i) Pass();
  }
  // Runs passes until the manager is idle.
  void Settle() {
    while (manager.busy()) Pass();
  }

  EplbManager manager;
  FakeExperts experts;
  BatchReplicas replicas;
  kernels::Random random;
  int hot = 4, first_hot = 8;
  bool streams = false;  // whether passes stream experts
};

EplbOptions Every(int64_t passes) {
  return {.enable = true, .num_iterations = passes, .dispatch = "balanced"};
}

TEST(EplbManager, EvensOutASkewedLoad) {
  std::mutex mutex;
  std::vector<std::vector<int32_t>> maps;
  OnRanks([&](RankComm& comm) {
    Rank rank(Every(100), comm);
    rank.Passes(99);
    EXPECT_LT(rank.manager.Status().balancedness.value(), 0.6);
    EXPECT_EQ(rank.manager.Status().state, EplbState::kIdle);
    rank.Pass();
    EXPECT_EQ(rank.manager.Status().state, EplbState::kPlanning);
    rank.Settle();
    rank.Passes(90);
    const EplbStatus status = rank.manager.Status();
    EXPECT_EQ(status.state, EplbState::kDone);
    EXPECT_GT(status.balancedness.value(), 0.93);
    EXPECT_EQ(status.trigger, "iterations");
    EXPECT_LT(status.planned_at.value(), 0.6);
    EXPECT_EQ(status.plans, 1);
    EXPECT_EQ(status.rebalances, 1);
    EXPECT_EQ(status.layers_moved, kMoeLayers);
    EXPECT_EQ(rank.manager.switches(), kMoeLayers);
    EXPECT_EQ(status.layers_done, status.layers_to_move);
    EXPECT_EQ(status.failures, 0);
    EXPECT_EQ(status.layer, -1);
    ASSERT_EQ(status.fills.size(), size_t{kNumFillFrom});
    EXPECT_GT(status.fills[static_cast<size_t>(FillFrom::kSameNode)], 0);
    EXPECT_GT(status.transfer_batches, 0);
    EXPECT_THAT(status.last_result, StartsWith("3 layers moved"));
    const std::lock_guard lock(mutex);
    for (const int layer : rank.experts.layers()) {
      EXPECT_EQ(rank.experts.Held(layer), rank.experts.Wanted(layer));
      const auto map = rank.experts.PlacementOf(layer).physical_to_logical();
      maps.emplace_back(map.begin(), map.end());
    }
  });
  for (size_t i = kMoeLayers; i < maps.size(); ++i) EXPECT_EQ(maps[i], maps[i - kMoeLayers]);
}

// The skewed passes stream their experts, so their load says nothing about the placement.
TEST(EplbManager, RowsOfStreamedPassesAreNotCounted) {
  OnRanks([](RankComm& comm) {
    Rank rank(Every(100), comm);
    rank.streams = true;
    rank.Passes(120);
    EXPECT_EQ(rank.manager.Status().plans, 0);
    EXPECT_EQ(rank.manager.Status().balancedness, std::nullopt);
    EXPECT_THAT(rank.manager.WhyNotRebalance(), HasSubstr("no load has been counted yet"));
    rank.streams = false;
    rank.hot = 0;
    rank.Passes(20);
    EXPECT_GT(rank.manager.Status().balancedness.value(), 0.7);
  });
}

TEST(EplbManager, RanksSendWhatWouldBeConverted) {
  OnRanks([](RankComm& comm) {
    Rank rank(Every(50), comm, /*sends=*/true);
    rank.experts.on_load = [](int, int32_t) { FAIL() << "an expert was loaded"; };
    rank.Passes(50);
    rank.Settle();
    EXPECT_EQ(rank.manager.Status().rebalances, 1);
    EXPECT_EQ(rank.manager.Status().experts_loaded, 0);
    EXPECT_GT(rank.manager.Status().experts_received, 0);
    for (const int layer : rank.experts.layers())
      EXPECT_EQ(rank.experts.Held(layer), rank.experts.Wanted(layer));
  });
}

TEST(EplbManager, MovesNothingForAnEvenLoad) {
  OnRanks([](RankComm& comm) {
    EplbOptions options = Every(50);
    options.min_utilization = 0.5;
    Rank rank(options, comm);
    rank.hot = 0;
    rank.Passes(200);
    const EplbStatus status = rank.manager.Status();
    EXPECT_EQ(status.plans, 0);
    EXPECT_EQ(status.state, EplbState::kIdle);
    EXPECT_THAT(status.last_result, StartsWith("nothing to do: balancedness"));
  });
}

TEST(EplbManager, PlansThatGainLessThanTheyCostAreNotCarriedOut) {
  OnRanks([](RankComm& comm) {
    Rank rank(Every(50), comm);
    rank.hot = 0;  // the load is even, so a plan's gain is only noise
    rank.Passes(50);
    rank.Settle();
    const EplbStatus status = rank.manager.Status();
    EXPECT_EQ(status.plans, 1);
    EXPECT_EQ(status.rebalances, 0);
    EXPECT_EQ(status.layers_moved, 0);
    EXPECT_THAT(status.last_result, StartsWith("nothing to move: "));
  });
}

TEST(EplbManager, PlansOnRequest) {
  OnRanks([](RankComm& comm) {
    EplbOptions options = Every(1000);
    options.min_utilization = 0;  // never triggers automatically
    Rank rank(options, comm);
    rank.Passes(3);
    EXPECT_THAT(rank.manager.Rebalance(), HasSubstr("no load has been counted yet"));
    rank.Passes(60);
    EXPECT_EQ(rank.manager.Rebalance(), "");
    EXPECT_TRUE(rank.manager.busy());
    EXPECT_THAT(rank.manager.Rebalance(), HasSubstr("already in progress (planning)"));
    // Without further requests, the migration still proceeds to its end.
    while (rank.manager.busy()) rank.manager.BeginPass();
    EXPECT_EQ(rank.manager.Status().balancedness, std::nullopt);  // no counts since the move
    EXPECT_EQ(rank.manager.Status().trigger, "request");
    EXPECT_EQ(rank.manager.Status().rebalances, 1);
    rank.Passes(60);
    EXPECT_GT(rank.manager.Status().balancedness.value(), 0.93);
  });
}

TEST(EplbManager, PlansBeforeItsTimeWhenTheLoadHasAnotherShape) {
  OnRanks([](RankComm& comm) {
    Rank rank(Every(1000), comm);  // steps of 20 passes
    rank.Passes(1000);
    rank.Settle();
    EXPECT_EQ(rank.manager.Status().plans, 1);
    rank.Passes(400);
    EXPECT_EQ(rank.manager.Status().plans, 1);  // sampling noise does not trigger
    rank.first_hot = 1;
    rank.Passes(300);
    rank.Settle();
    // The shift triggers a plan when the new load is half of the window, and another when the new
    // load fills the window.
    EXPECT_GE(rank.manager.Status().plans, 2);
    EXPECT_LE(rank.manager.Status().plans, 3);
    EXPECT_EQ(rank.manager.Status().trigger, "shape");
    // The plan may have used a window of which only half is the new load. Another plan then follows
    // when the new load fills the window, still before 1000 passes.
    const auto balancedness = [&] { return rank.manager.Status().balancedness.value_or(0); };
    rank.Passes(100);
    for (int i = 0; i < 25 && balancedness() <= 0.85; ++i) rank.Passes(20);
    EXPECT_GT(balancedness(), 0.85);
    EXPECT_EQ(rank.manager.Status().trigger, "shape");
  });
}

TEST(EplbManager, AFailureIsReportedAndTheNextPlanIsMade) {
  OnRanks([](RankComm& comm) {
    Rank rank(Every(50), comm);
    const bool broken = comm.mesh.rank() == 1;
    rank.experts.on_load = [&](int layer, int32_t) {
      if (broken && layer == 2) throw Invalid("disk on fire");
    };
    rank.Passes(50);
    rank.Settle();
    EplbStatus status = rank.manager.Status();
    EXPECT_EQ(status.state, EplbState::kIdle);
    EXPECT_EQ(status.failures, 1);
    EXPECT_EQ(status.watchdog_resets, 0);
    EXPECT_EQ(status.rebalances, 0);
    EXPECT_EQ(status.layers_moved, 1);
    EXPECT_THAT(status.last_failure, HasSubstr(broken ? "disk on fire" : "rank 1"));
    EXPECT_THAT(status.last_failure, HasSubstr("after 1 of 3 layers"));
    rank.experts.on_load = {};
    rank.Passes(50);
    rank.Settle();
    status = rank.manager.Status();
    EXPECT_EQ(status.rebalances, 1);
    EXPECT_EQ(status.layers_moved, 3);
    for (const int layer : rank.experts.layers())
      EXPECT_EQ(rank.experts.Held(layer), rank.experts.Wanted(layer));
  });
}

TEST(EplbManager, TheWatchdogResetsAMoveThatHangs) {
  OnRanks([](RankComm& comm) {
    EplbOptions options = Every(50);
    options.watchdog_seconds = 1;
    Rank rank(options, comm);
    std::latch released(1);
    rank.experts.on_load = [&](int, int32_t) {
      if (comm.mesh.rank() == 2) released.wait();
    };
    rank.Passes(50);
    while (rank.manager.Status().state != EplbState::kStopping) rank.Pass();
    EXPECT_EQ(rank.experts.Held(0), rank.experts.Wanted(0));
    EXPECT_THAT(rank.manager.Rebalance(), HasSubstr("already in progress (stopping)"));
    released.count_down();
    rank.Settle();
    EXPECT_EQ(rank.manager.Status().watchdog_resets, 1);
    EXPECT_THAT(rank.manager.Status().last_failure, HasSubstr("no rank has made progress"));
  });
}

TEST(EplbManager, RefusesWhatCannotBeOrNamesIt) {
  const auto why = [](const EplbOptions& options) { return ErrorOf([&] { Validate(options); }); };
  EXPECT_EQ(why({}), "no error");
  EXPECT_THAT(why({.algorithm = "best"}), HasSubstr("--eplb-algorithm best"));
  EXPECT_THAT(why({.num_iterations = 0}), HasSubstr("--eplb-rebalance-num-iterations 0"));
  EXPECT_THAT(why({.layers_per_chunk = 0}), HasSubstr("--eplb-rebalance-layers-per-chunk 0"));
  EXPECT_THAT(why({.min_utilization = 1.5}),
              HasSubstr("--eplb-min-rebalancing-utilization-threshold 1.5"));
  EXPECT_THAT(why({.dispatch = "best"}), HasSubstr("--ep-dispatch-algorithm best"));
  EXPECT_THAT(why({.watchdog_seconds = 0}), HasSubstr("--eplb-watchdog-timeout 0"));
}

TEST(EplbManager, AutoIsThePlannerThatFitsTheDispatch) {
  EplbOptions options;
  EXPECT_EQ(PlannerFor(options, 24, 4), "deepseek");
  EXPECT_EQ(PlannerFor(options, 25, 4), "yard");
  options.dispatch = "balanced";
  EXPECT_EQ(PlannerFor(options, 24, 4), "yard");
  options.algorithm = "elasticity_aware";
  EXPECT_EQ(PlannerFor(options, 24, 4), "elasticity_aware");
}

TEST(EplbManager, APlannerThatCannotDoItIsRefusedAtStart) {
  EplbShape shape = kShape;
  shape.redundant = 3;
  EplbOptions options;
  EXPECT_NO_THROW(EplbManager::Check(options, shape, kRanks));
  options.algorithm = "deepseek";
  EXPECT_THAT(ErrorOf([&] { EplbManager::Check(options, shape, kRanks); }),
              HasSubstr("19 slots are not divisible by 4 ranks"));
}

TEST(PlanJob, BroadcastsThePlanOfRankZero) {
  OnRanks([](RankComm& comm) {
    std::latch released(1);
    PlanJob job(*comm.tp);
    const auto end = [&](std::chrono::duration<double> timeout) {
      for (;;)
        if (auto outcome = job.Poll(timeout)) return *outcome;
    };
    job.Start([] { return std::vector<int32_t>{3, 1, 2}; });
    EXPECT_EQ(end(std::chrono::seconds(9)).plan, (std::vector<int32_t>{3, 1, 2}));
    job.Start([]() -> std::vector<int32_t> { throw Invalid("no such plan"); });
    EXPECT_EQ(end(std::chrono::seconds(9)).error, "no such plan");

    const auto hang = [&] {
      released.wait();
      return std::vector<int32_t>{1};
    };
    job.Start(hang);
    PlanJob::Outcome outcome = end(std::chrono::milliseconds(20));
    EXPECT_TRUE(outcome.timed_out);
    EXPECT_THAT(outcome.error, HasSubstr("the planner timed out after 0.02 s"));
    job.Start(hang);
    outcome = end(std::chrono::seconds(9));
    EXPECT_THAT(outcome.error, HasSubstr("is still running"));
    EXPECT_TRUE(outcome.plan.empty());
    comm.tp->Barrier("test");
    released.count_down();
  });
}

}  // namespace
}  // namespace switchyard
