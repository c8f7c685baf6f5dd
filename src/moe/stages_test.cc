// The stages of MoeLayer: their order, and other work or other batches that run between them.
#include <array>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

using CallLog = std::vector<std::string>;

// Logs the layer's calls.
class LoggingDispatcher : public Dispatcher {
 public:
  LoggingDispatcher(std::unique_ptr<Dispatcher> inner, CallLog* call_log)
      : inner_(std::move(inner)), call_log_(call_log) {}
  bool scatters() const override { return inner_->scatters(); }
  std::vector<DispatchLayout> layouts() const override { return inner_->layouts(); }
  int64_t MaxTokens(bool decode) const override { return inner_->MaxTokens(decode); }
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override {
    call_log_->push_back("begin dispatch");
    inner_->BeginDispatch(x, topk, decode, handle);
  }
  Dispatched EndDispatch(DispatchHandle* handle) override {
    call_log_->push_back("end dispatch");
    return inner_->EndDispatch(handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    call_log_->push_back("begin combine");
    inner_->BeginCombine(experts, handle);
  }
  void EndCombine(DispatchHandle* handle, float* y) override {
    call_log_->push_back("end combine");
    inner_->EndCombine(handle, y);
  }

 private:
  std::unique_ptr<Dispatcher> inner_;
  CallLog* call_log_;
};

class LoggingFused : public FusedExperts {
 public:
  explicit LoggingFused(CallLog* call_log) : call_log_(call_log) {}
  bool Supports(WeightFormat) const override { return true; }
  int64_t MaxTokens(bool) const override { return 2; }
  void Begin(const float*, const TopK&, bool, DispatchHandle*) override {
    call_log_->push_back("begin");
  }
  void End(const ExpertBlock&, DispatchHandle*, float*) override { call_log_->push_back("end"); }

 private:
  CallLog* call_log_;
};

// The call log of one pass of 3 tokens in rounds of 2.
CallLog CallLogOfPass(const std::string& a2a) {
  CallLog call_log;
  const auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
  const DispatcherBackend deepep = backends->dispatchers.Find("deepep");
  backends->dispatchers.Add("call_log", {[&](const DispatcherContext& context) {
                                           return std::make_unique<LoggingDispatcher>(
                                               deepep.make(context), &call_log);
                                         },
                                         deepep.symmetric_bytes, ""});
  backends->fused.Add(
      "call_log_fused",
      {[&](const DispatcherContext&) { return std::make_unique<LoggingFused>(&call_log); },
       [](const MoeOptions&, const ExchangeShape&) { return size_t{0}; }, ""});
  const TestLayer layer({.hidden = 32, .intermediate = 32, .num_experts = 4, .top_k = 2});
  MoeOptions options{.a2a_backend = "deepep", .max_dispatch_tokens_per_rank = 2};
  RunMoeRanks(options, layer.Shape(3), {}, [&](RankComm& comm, ThreadPool& pool) {
    options.a2a_backend = a2a;
    const MoeLayer moe(layer.config, layer.whole,
                       MakeCpuMoe(options, layer.Shape(3), comm, pool, backends));
    const std::vector<float> hidden = layer.Hidden(3);
    std::vector<float> out(hidden.size());
    const int64_t tokens = 3;
    moe.Forward(*moe.MakeState(), hidden.data(), {{&tokens, 1}, {&tokens, 1}}, out.data());
  });
  return call_log;
}

CallLog Twice(const CallLog& round) {
  CallLog both = round;
  both.insert(both.end(), round.begin(), round.end());
  return both;
}

TEST(MoeStagesTest, CallTheExchangeOncePerRound) {
  EXPECT_EQ(CallLogOfPass("call_log"),
            Twice({"begin dispatch", "end dispatch", "begin combine", "end combine"}));
  EXPECT_EQ(CallLogOfPass("call_log_fused"), Twice({"begin", "end"}));
}

// If other work uses another group's communicator between stages, the layer is not affected.
TEST(MoeStagesTest, OtherWorkMayComputeAndCommunicateBetweenThem) {
  const TestLayer layer({.hidden = 96, .intermediate = 64});
  const TestPass pass{{5, 3}, {0, 0}};
  const MeshShape mesh{.tp = 4, .ep = 4, .dp = 2};
  for (const A2aChoice& choice : AllA2aChoices()) {
    SCOPED_TRACE(choice.Describe());
    const MoeOptions options{.a2a_backend = choice.a2a, .deepep_mode = choice.mode};
    const std::vector<float> want = RunPasses(layer, options, mesh, {pass});
    std::vector<std::vector<float>> groups(2);
    RunMoeRanks(options, ShapeFor(layer, {pass}), mesh, [&](RankComm& comm, ThreadPool& pool) {
      const int group = comm.mesh.dp_rank();
      const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                         MakeCpuMoe(options, ShapeFor(layer, {pass}), comm, pool));
      const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
      std::vector<float> out(pass.tokens[group] * layer.spec.hidden);
      float ranks = 0;
      const auto count = [&](MoeStage stage) {
        if (stage != MoeStage::kBeginDispatch && stage != MoeStage::kBeginCombine) return;
        float one = 1;
        comm.tp->AllReduceSum(&one, 1);
        ranks += one;
      };
      RunStages(moe, *moe.MakeState(), hidden.data() + pass.FirstOf(group) * layer.spec.hidden,
                pass.tokens, /*decode=*/false, out.data(), count);
      EXPECT_EQ(ranks, 8.0f);
      if (comm.mesh.attn_tp_rank() == 0) groups[group] = out;
    });
    EXPECT_TRUE(SameBits(JoinGroups({pass}, layer.spec.hidden, groups), want));
  }
}

// Two batches in flight on one layer, each a pass of one round.
class TwoBatches {
 public:
  TwoBatches(const TestLayer& layer, const MoeLayer& moe, int group, std::array<TestPass, 2> passes)
      : passes_(std::move(passes)) {
    for (int i = 0; i < 2; ++i) {
      const int64_t hidden = layer.spec.hidden;
      const std::vector<float> all = layer.Hidden(passes_[i].total(), passes_[i].seed);
      const auto first = all.begin() + passes_[i].FirstOf(group) * hidden;
      x_[i].assign(first, first + passes_[i].tokens[group] * hidden);
      y_[i].assign(x_[i].size(), NAN);
      states_[i] = moe.MakeState(i);
    }
  }
  void Begin(const MoeLayer& moe, int i) {
    const bool decode = passes_[i].decoding == passes_[i].tokens;
    moe.Start(*states_[i], x_[i].data(), passes_[i].tokens, decode, y_[i].data());
    ASSERT_TRUE(states_[i]->NextRound());
    moe.Route(*states_[i]);
    moe.BeginDispatch(*states_[i]);
  }
  MoeState& operator[](int i) { return *states_[i]; }
  std::vector<float> Outputs() const {
    std::vector<float> all = y_[0];
    all.insert(all.end(), y_[1].begin(), y_[1].end());
    return all;
  }

 private:
  std::array<TestPass, 2> passes_;
  std::array<std::vector<float>, 2> x_, y_;
  std::array<std::unique_ptr<MoeState>, 2> states_;
};

void RunExperts(const MoeLayer& moe, MoeState& batch) {
  moe.RunShared(batch);
  moe.EndDispatch(batch);
  moe.PrePermute(batch);
  moe.RunExperts(batch);
  moe.PostPermute(batch);
  moe.BeginCombine(batch);
  moe.RunDown(batch);
}
void EndCombine(const MoeLayer& moe, MoeState& batch) {
  moe.EndCombine(batch);
  ASSERT_FALSE(batch.NextRound());
  moe.Scatter(batch);
}

TEST(MoeStagesTest, TwoBatchesInFlightEndInEitherOrder) {
  const TestLayer layer(
      {.format = WeightFormat::kBF16, .hidden = 96, .intermediate = 64, .shared = true});
  const std::vector<TestPass> passes = {{{9, 2, 0}, {0, 0, 0}, 1}, {{1, 3, 4}, {1, 3, 4}, 2}};
  const MoeBackends backends = BuiltinMoeBackends();
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (backends.fused.FindIf(choice.a2a)) continue;  // a fused operator has no stages
    const MoeOptions options{
        .a2a_backend = choice.a2a, .deepep_mode = choice.mode, .row_dtype = DType::kBF16};
    for (const int ep : {6, 2}) {
      const MeshShape mesh{.tp = 6, .ep = ep, .dp = 3};
      RunMoeRanks(options, layer.Shape(9), mesh, [&](RankComm& comm, ThreadPool& pool) {
        const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                           MakeCpuMoe(options, layer.Shape(9), comm, pool));
        const auto run = [&](const auto& steps) {
          TwoBatches both(layer, moe, comm.mesh.dp_rank(), {passes[0], passes[1]});
          steps(both);
          return both.Outputs();
        };
        const std::vector<float> one_by_one = run([&](TwoBatches& both) {
          for (const int i : {0, 1}) {
            both.Begin(moe, i);
            RunExperts(moe, both[i]);
            EndCombine(moe, both[i]);
          }
        });
        for (const auto& [first, second] : {std::pair(0, 1), std::pair(1, 0)}) {
          for (const auto& [ends_first, ends_second] : {std::pair(0, 1), std::pair(1, 0)}) {
            const int a = first, b = second, c = ends_first, d = ends_second;
            EXPECT_TRUE(SameBits(one_by_one, run([&](TwoBatches& both) {
                                   both.Begin(moe, 0);
                                   both.Begin(moe, 1);
                                   RunExperts(moe, both[a]);
                                   RunExperts(moe, both[b]);
                                   EndCombine(moe, both[c]);
                                   EndCombine(moe, both[d]);
                                 })))
                << choice.Describe() << " ep " << ep << ": experts of " << a << ", combine of " << c
                << " first";
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace switchyard
