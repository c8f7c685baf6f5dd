// Expert load balancing with pipeline stages: outputs do not change, and reports have all layers.
#include "engine/pipeline/staged_eplb.h"

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/test_engine.h"
#include "eplb/test_movable.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* fixture;
  MeshShape mesh;
  const char* dispatch = "static";
  int redundant = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.fixture << " pp" << c.mesh.pp << " tp" << c.mesh.tp << " dp" << c.mesh.dp << " "
             << c.dispatch << " " << c.redundant << " redundant";
}

class StagedEplb : public ::testing::TestWithParam<Case> {};

// Automatic and requested rebalances, queries, and a recorder, while random requests run.
TEST_P(StagedEplb, MovesDoNotChangeOutputs) {
  constexpr uint64_t kRequests = 10;
  const Case& c = GetParam();
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.moe.a2a_backend = "deepep";
  config.moe.num_redundant_experts = c.redundant;
  config.eplb.dispatch = c.dispatch;
  config.disable_jump_forward = true;
  Outputs want;
  {
    EngineConfig plain = config;
    plain.mesh.pp = 1;
    Engine engine(plain);
    want = RunAll(engine, kRequests);
  }
  config.eplb.enable = true;
  config.eplb.num_iterations = 9;
  config.recorder = {.mode = "per_token", .metrics = true};
  Engine engine(config);
  const auto request = [&](uint64_t i, int32_t vocab) {
    if (i % 4 == 1) engine.Tell(RebalanceExperts{.ticket = i});
    if (i % 5 == 2) engine.Tell(GetEplb{.ticket = i, .slots = true});
    if (i % 7 == 3) engine.Tell(GetExpertLoad{.ticket = i});
    if (i == 9) engine.Tell(RecordExperts{.ticket = i, .action = RecordAction::kStart});
    return RequestOf(i, vocab);
  };
  ExpectEqual(RunAll(engine, kRequests, request), want);
  EXPECT_TRUE(engine.FlushCache());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, StagedEplb,
    ::testing::Values(Case{"qwen3_moe", {.tp = 2, .ep = 2, .pp = 2}},
                      Case{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 3}, "dynamic", 4}));

// The managers of a rank: the first stage has no experts.
class StageManagers {
 public:
  static constexpr int kLayers = 4, kMoeLayers = 2, kExperts = 8, kRedundant = 4;

  explicit StageManagers(RankComm& comm) : comm_(comm) {
    if (comm.mesh.first_stage()) return;
    const EplbShape shape{.layers = kLayers, .experts = kExperts, .redundant = kRedundant};
    const EplbOptions options{.enable = true, .num_iterations = 1000, .min_utilization = 0};
    manager_ = std::make_unique<EplbManager>(options, shape, comm);
    experts_.emplace(kMoeLayers, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    manager_->Attach(&*experts_);
  }
  ~StageManagers() {
    if (manager_) manager_->Detach();
  }
  StageManagers(const StageManagers&) = delete;
  StageManagers& operator=(const StageManagers&) = delete;

  EplbManager* manager() { return manager_.get(); }
  void Pass() {
    if (!manager_) return;
    manager_->BeginPass();
    // Expert 0 has most of the load.
    const std::vector<int32_t> ids = {0, 1, 0, 2, 0, 3, 0, 4};
    for (const int layer : experts_->layers())
      manager_->OnRoute(0, layer, {.tokens = 4, .logical = ids, .physical = ids});
    manager_->EndPass(0);
  }
  EplbReport Ask(const ControlMessage& message) {
    const std::vector<EngineMessage> answers =
        ApplyToStagedEplb({message}, manager_.get(), kLayers, comm_);
    EXPECT_EQ(answers.size(), comm_.mesh.rank() == 0 ? 1u : 0u);
    return answers.empty() ? EplbReport() : std::get<EplbReport>(answers.front());
  }

 private:
  RankComm& comm_;
  std::unique_ptr<EplbManager> manager_;
  std::optional<FakeExperts> experts_;
};

TEST(StagedEplbReports, HaveTheLayersOfAllStages) {
  const MeshShape mesh{.tp = 2, .ep = 2, .pp = 3};
  RunRankThreads(
      mesh.world(), RankComm::BytesPerRank(mesh) + EplbManager::BytesPerRank(mesh),
      [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm =
            RankComm::Create(std::move(arena), mesh, rank, {.timeout = std::chrono::seconds(30)});
        StageManagers stages(*comm);
        const bool reads = rank == 0;
        EplbReport report = stages.Ask(RebalanceExperts{.ticket = 5});
        if (reads) {
          EXPECT_EQ(report.ticket, 5u);
          EXPECT_THAT(report.refused, HasSubstr("stage 1: no load has been counted yet"));
        }
        for (int i = 0; i < 40; ++i) stages.Pass();
        report = stages.Ask(RebalanceExperts{.ticket = 6});
        if (reads) {
          EXPECT_EQ(report.refused, "");
          EXPECT_EQ(report.status.state, EplbState::kPlanning);
          EXPECT_EQ(report.status.passes, 40);
        }
        report = stages.Ask(RebalanceExperts{.ticket = 7});
        if (reads) {
          EXPECT_THAT(report.refused, HasSubstr("stage 1: a rebalance is already in progress"));
        }
        EplbManager* const manager = stages.manager();
        const auto finish = [&] {
          while (manager->busy()) manager->BeginPass();
        };
        if (comm->mesh.pp_rank() == 1) finish();
        report = stages.Ask(GetEplb{.ticket = 8, .slots = true});
        if (reads) {
          EXPECT_EQ(report.status.state, EplbState::kPlanning);  // of stage 2
          EXPECT_EQ(report.status.plans, 1);
        }
        if (comm->mesh.pp_rank() == 2) finish();
        report = stages.Ask(GetEplb{.ticket = 9, .slots = true});
        if (!reads) return;
        EXPECT_EQ(report.status.state, EplbState::kDone);
        EXPECT_EQ(report.status.plans, 2);
        EXPECT_EQ(report.status.rebalances, 2);
        EXPECT_EQ(report.status.layers_moved, 2 * StageManagers::kMoeLayers);
        EXPECT_EQ(report.status.trigger, "request");
        EXPECT_THAT(report.status.last_result, HasSubstr("stage 2: 2 layers moved, rank 4 loaded"));
        constexpr int kSlots = StageManagers::kExperts + StageManagers::kRedundant;
        ASSERT_EQ(report.slots.size(), size_t{3 * StageManagers::kLayers * kSlots});
        for (int layer = 0; layer < 3 * StageManagers::kLayers; ++layer) {
          const bool moe = layer >= StageManagers::kLayers && layer % 2 == 0;  // as FakeExperts
          EXPECT_EQ(report.slots[static_cast<size_t>(layer) * kSlots] >= 0, moe) << layer;
        }
      });
}

TEST(StagedEplbReports, MeansAndNumbersAreThoseOfAllLayers) {
  EplbStageStatus dense{.layers = 3}, one{.layers = 2, .moe_layers = 1},
      two{.layers = 4, .moe_layers = 3};
  one.status = {.state = EplbState::kDone,
                .balancedness = 0.5,
                .fills = {1, 2},
                .plan_seconds = 2,
                .plans = 1,
                .last_result = "nothing to do"};
  two.status = {.state = EplbState::kMoving,
                .balancedness = 0.9,
                .trigger = "shape",
                .layer = 2,
                .layers_done = 1,
                .layers_to_move = 3,
                .fills = {3, 4},
                .plan_seconds = 1,
                .plans = 5};
  EplbStatus all = MergedStatus({dense, one, two});
  EXPECT_EQ(all.state, EplbState::kMoving);
  EXPECT_EQ(all.trigger, "shape");
  EXPECT_EQ(all.layer, 3 + 2 + 2);
  EXPECT_DOUBLE_EQ(all.balancedness.value(), (0.5 + 3 * 0.9) / 4);
  EXPECT_EQ(all.planned_at, std::nullopt);
  EXPECT_EQ(all.fills, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(all.plan_seconds, 2);
  EXPECT_EQ(all.plans, 6);
  EXPECT_EQ(all.last_result, "stage 1: nothing to do");
  two.status.state = EplbState::kIdle;
  all = MergedStatus({dense, one, two});
  EXPECT_EQ(all.state, EplbState::kDone);
  EXPECT_EQ(all.layer, -1);
}

}  // namespace
}  // namespace switchyard
