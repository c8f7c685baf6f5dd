// What stages add to the forward passes of their models.
#include "engine/pipeline/staged_forward.h"

#include <gmock/gmock.h>

#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A stage whose layers choose experts rank · 100, rank · 100 + 1, …; or that has no experts.
class Routes : public ForwardFunction {
 public:
  Routes(int rank, int64_t width, bool has_experts) : width_(width) {
    for (int32_t i = 0; has_experts && i < 2 * width; ++i) routed_.push_back(rank * 100 + i);
  }
  std::span<const float> Forward(const ForwardBatch&) override { return {}; }
  int64_t vocab_size() const override { return 8; }
  std::span<const int32_t> routed_experts() const override { return routed_; }
  int64_t routed_width() const override { return routed_.empty() ? 0 : width_; }

 private:
  const int64_t width_;
  std::vector<int32_t> routed_;  // of two rows
};

// Stages of one, two and one layers, with two experts for each token; the second stage has no MoE
// layers. The second rank of an attention group sends no values, so it gets no experts.
TEST(StagedForward, ChosenExpertsOfAllStagesAreJoined) {
  EngineConfig config{.mesh = {.tp = 2, .pp = 3}};
  EnginePlan plan;
  plan.model.hidden = 4;
  plan.model.moe = MoeModelConfig{.router = {.num_experts = 8, .top_k = 2}};
  plan.model.layers.resize(4);
  plan.max_batch_tokens = 2;
  plan.stages = {{.begin = 0, .end = 1}, {.begin = 1, .end = 3}, {.begin = 3, .end = 4}};
  const StageLinkSizes sizes = StageLinkSizesOf(config, plan);
  const size_t bytes = RankComm::BytesPerRank(config.mesh) + StageLinks::BytesPerRank(sizes);
  RunRankThreads(config.mesh.world(), bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), config.mesh, rank,
                                       {.timeout = std::chrono::seconds(60)});
    StageLinks links(*comm, sizes);
    const int stage = comm->mesh.pp_rank();
    Routes model(rank, 2 * plan.stages[stage].size(), stage != 1);
    StagedForward forward(model, *comm, links, config, plan);
    EXPECT_EQ(forward.routed_width(), 8);
    ForwardBatch batch{.tokens = {5, 6}, .positions = {0, 1}, .slots = {0, 1}};
    forward.Forward(batch);
    EXPECT_THAT(forward.routed_experts(), IsEmpty());  // not requested
    batch.routed_experts = true;
    forward.Forward(batch);
    if (comm->mesh.attn_tp_rank() != 0) {
      EXPECT_THAT(forward.routed_experts(), IsEmpty());
    } else if (stage == 1) {
      EXPECT_THAT(forward.routed_experts(),
                  ElementsAreArray({0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1}));
    } else if (stage == 2) {
      EXPECT_THAT(forward.routed_experts(), ElementsAreArray({0, 1, -1, -1, -1, -1, 400, 401,  //
                                                              2, 3, -1, -1, -1, -1, 402, 403}));
    }
  });
}

// A stage on a GPU, which announces its passes.
class Announces : public ForwardFunction {
 public:
  Announces(StageLinks& links, const Mesh& mesh) : links_(links), mesh_(mesh) {}
  std::span<const float> Forward(const ForwardBatch&) override { return {}; }
  int64_t vocab_size() const override { return 8; }
  bool draws() const override { return true; }
  bool launches() const override { return true; }
  void Launch(const ForwardBatch& batch) override {
    auto count = static_cast<uint64_t>(batch.num_tokens());
    const auto bytes = std::as_writable_bytes(std::span(&count, 1));
    if (!mesh_.first_stage()) links_.rows().Receive(bytes);
    if (!mesh_.last_stage()) links_.rows().Send(bytes);
    ++launched;
  }
  std::span<const int32_t> Collect() override {
    ++collected;
    return {};
  }
  int launched = 0, collected = 0;

 private:
  StageLinks& links_;
  const Mesh mesh_;
};

// Launched passes have the fingerprint of their batch, as others. Only the last stage draws tokens.
TEST(StagedForward, PassesAreLaunchedWithTheFingerprintOfTheirBatch) {
  EngineConfig config{.mesh = {.pp = 2}};
  EnginePlan plan;
  plan.cuda = true;
  plan.model.hidden = 4;
  plan.model.layers.resize(2);
  plan.max_batch_tokens = 2;
  plan.stages = {{.begin = 0, .end = 1}, {.begin = 1, .end = 2}};
  const StageLinkSizes sizes = StageLinkSizesOf(config, plan);
  EXPECT_EQ(sizes.rows_bytes, StageLinkSizes::kAnnouncement);
  const size_t bytes = RankComm::BytesPerRank(config.mesh) + StageLinks::BytesPerRank(sizes);
  RunRankThreads(config.mesh.world(), bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), config.mesh, rank,
                                       {.timeout = std::chrono::seconds(60)});
    StageLinks links(*comm, sizes);
    Announces model(links, comm->mesh);
    StagedForward forward(model, *comm, links, config, plan);
    EXPECT_EQ(forward.draws(), rank == 1);
    EXPECT_TRUE(forward.launches());
    ForwardBatch batch{.tokens = {5, 6}, .positions = {0, 1}, .slots = {0, 1}};
    for (int pass = 0; pass < 5; ++pass) {
      forward.Launch(batch);
      EXPECT_THAT(forward.Collect(), IsEmpty());
    }
    EXPECT_EQ(model.launched, 5);
    EXPECT_EQ(model.collected, 5);
    batch.slots[1] += rank;  // the stages have different batches
    if (rank == 0) return forward.Launch(batch);
    EXPECT_THAT(ErrorOf([&] { forward.Launch(batch); }, ErrorKind::kPeer),
                HasSubstr("belong to another batch"));
  });
}

}  // namespace
}  // namespace switchyard
