// Aborts a batch between any two stages. The outputs of another batch in flight must not change,
// and the aborted state must be usable for further batches.
#include "gtest/gtest.h"
#include "moe/placement/test_placements.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using StageOf = void (MoeLayer::*)(MoeState&) const;

// All stages of a batch with one round.
constexpr StageOf kStages[] = {
    &MoeLayer::Route,       &MoeLayer::BeginDispatch, &MoeLayer::RunShared,
    &MoeLayer::EndDispatch, &MoeLayer::PrePermute,    &MoeLayer::RunExperts,
    &MoeLayer::PostPermute, &MoeLayer::BeginCombine,  &MoeLayer::EndCombine};
constexpr int kNumStages = std::size(kStages);

// A batch of one attention group, run stage by stage.
class Batch {
 public:
  Batch(const MoeLayer& moe, const TestLayer& layer, int slot, const TestPass& pass, int group)
      : moe_(moe), state_(moe.MakeState(slot)), pass_(pass) {
    const std::vector<float> all = layer.Hidden(pass.total(), pass.seed);
    const auto first = all.begin() + pass.FirstOf(group) * layer.spec.hidden;
    hidden_.assign(first, first + pass.tokens[group] * layer.spec.hidden);
    out_.resize(hidden_.size());
  }

  void Start() {
    std::ranges::fill(out_, NAN);
    next_ = 0;
    EXPECT_TRUE(
        moe_.StartOneRound(*state_, hidden_.data(), {pass_.tokens, pass_.decoding}, out_.data()));
  }
  void RunStage() { (moe_.*kStages[next_++])(*state_); }
  bool done() const { return next_ == kNumStages; }
  std::vector<float> Finish() {
    while (!done()) RunStage();
    moe_.Scatter(*state_);
    return out_;
  }
  void Abort() { moe_.Abort(*state_); }

 private:
  const MoeLayer& moe_;
  const std::unique_ptr<MoeState> state_;
  const TestPass pass_;
  std::vector<float> hidden_, out_;
  int next_ = 0;
};

void ExpectAbortsChangeNoBit(const TestLayer& layer, MoeOptions options, const MeshShape& mesh) {
  options.passes = 2;
  const bool decode = options.deepep_mode == "low_latency";
  const TestPass kept = TestPass::Spread(17, mesh.dp, decode, 1);
  const TestPass aborted = TestPass::Spread(11, mesh.dp, decode, 2);
  RunMoeRanks(
      options, ShapeFor(layer, {kept, aborted}), mesh, [&](RankComm& comm, ThreadPool& pool) {
        const MoeLayer moe(layer.config,
                           layer.ShareOf(comm.mesh, ScattersTokens(options, comm.mesh.shape())),
                           MakeCpuMoe(options, ShapeFor(layer, {kept, aborted}), comm, pool));
        const int group = comm.mesh.dp_rank();
        Batch a(moe, layer, 0, kept, group), b(moe, layer, 1, aborted, group);
        a.Start();
        const std::vector<float> want = a.Finish();
        b.Start();
        const std::vector<float> of_b = b.Finish();
        for (int stages = 0; stages <= kNumStages; ++stages) {
          for (int before = 0; before <= kNumStages; before += 3) {
            a.Start();
            for (int i = 0; i < before; ++i) a.RunStage();
            b.Start();
            for (int i = 0; i < stages; ++i) {
              b.RunStage();
              if (!a.done()) a.RunStage();
            }
            b.Abort();
            EXPECT_TRUE(SameBits(a.Finish(), want)) << stages << " after " << before;
            b.Start();
            EXPECT_TRUE(SameBits(b.Finish(), of_b)) << stages << " after " << before;
          }
        }
      });
}

TEST(AbortTest, BetweenAnyTwoStagesChangesNoBitOfAnotherBatch) {
  const TestLayer layer({.hidden = 64, .intermediate = 32, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const MeshShape& mesh :
         {MeshShape{.tp = 1}, MeshShape{.tp = 4, .ep = 4}, MeshShape{.tp = 4, .ep = 2, .dp = 2}}) {
      SCOPED_TRACE(
          fmt::format("{} tp {} ep {} dp {}", choice.Describe(), mesh.tp, mesh.ep, mesh.dp));
      ExpectAbortsChangeNoBit(layer, {.a2a_backend = choice.a2a, .deepep_mode = choice.mode}, mesh);
    }
  }
}

}  // namespace
}  // namespace switchyard
