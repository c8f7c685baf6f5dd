#include "moe/cuda/router/routing_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "moe/cuda/router/select_experts.h"
#include "moe/cuda/router/test_observer.h"
#include "moe/cuda/testing.h"
#include "moe/placement/test_placements.h"

namespace switchyard::cuda {
namespace {

// One selection with random sizes, of which a range of tokens is recorded.
struct RandomCase {
  explicit RandomCase(kernels::Random& random)
      : tokens(random.Below(300)),
        experts(static_cast<int>(8 + random.Below(250))),
        k(static_cast<int>(1 + random.Below(8))),
        begin(random.Below(tokens + 1)),
        end(begin + random.Below(tokens - begin + 1)),
        first_row(random.Below(50)),
        rows(random.Below(first_row + tokens + 1)),
        logits(random.Normal(tokens * experts)),
        bias(experts, 0.0f),
        physical_of(experts) {
    // If fewer than k experts have a finite bias, some slots have no expert.
    const int64_t left = random.Below(2) == 0 ? random.Below(k + 1) : experts;
    for (int64_t e = left; e < experts; ++e) bias[e] = -INFINITY;
    for (int32_t& id : physical_of) id = static_cast<int32_t>(random.Below(experts + 5));
  }

  bool IsRecorded(int64_t token) const {
    return token >= begin && token < end && first_row + token - begin < rows;
  }

  int64_t tokens;
  int experts, k;
  int64_t begin, end, first_row, rows;
  std::vector<float> logits, bias;
  std::vector<int32_t> physical_of;
};

TEST(RoutingRecord, HoldsTheRecordedTokensChoices) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(3);
  for (int round = 0; round < 80; ++round) {
    const RandomCase c(random);
    SCOPED_TRACE(::testing::Message()
                 << round << ": " << c.tokens << " tokens, [" << c.begin << ", " << c.end
                 << ") at row " << c.first_row << " of " << c.rows);
    const int64_t slots = c.tokens * c.k, log_rows = c.first_row + c.tokens + 1;
    const DeviceMemory logits = ToDevice(c.logits), bias = ToDevice(c.bias);
    const DeviceMemory table = ToDevice(c.physical_of);
    const DeviceMemory ids(slots * 4), weights(slots * 4), logical(slots * 4);
    const DeviceMemory control = ToDevice(std::vector<int32_t>{static_cast<int32_t>(c.rows), 1});
    const DeviceMemory counts(c.experts * 4), physical_counts((c.experts + 5) * 4);
    std::vector<int32_t> want_rows(log_rows * c.k, -7), want_physical_rows = want_rows;
    const DeviceMemory rows = ToDevice(want_rows), physical_rows = ToDevice(want_rows);
    Check(SelectExpertsOnDevice({.logits = logits.as<float>(),
                                 .correction_bias = bias.as<float>(),
                                 .tokens = c.tokens,
                                 .num_experts = c.experts,
                                 .top_k = c.k,
                                 .logical = logical.as<int32_t>(),
                                 .ids = ids.as<int32_t>(),
                                 .weights = weights.as<float>(),
                                 .record = {.control = control.as<RoutingControl>(),
                                            .begin = c.begin,
                                            .end = c.end,
                                            .first_row = c.first_row,
                                            .physical_of = table.as<int32_t>(),
                                            .logical_counts = counts.as<int32_t>(),
                                            .physical_counts = physical_counts.as<int32_t>(),
                                            .logical_ids = rows.as<int32_t>(),
                                            .physical_ids = physical_rows.as<int32_t>()}},
                                nullptr),
          "choice of experts");
    const auto chosen = ToHost<int32_t>(logical, slots);
    std::vector<int32_t> want(c.experts), want_physical(c.experts + 5);
    for (int64_t i = 0; i < slots; ++i) {
      const int64_t token = i / c.k;
      if (!c.IsRecorded(token)) continue;
      const int64_t at = (c.first_row + token - c.begin) * c.k + i % c.k;
      const int32_t physical = chosen[i] < 0 ? -1 : c.physical_of[chosen[i]];
      want_rows[at] = chosen[i];
      want_physical_rows[at] = physical;
      if (chosen[i] < 0) continue;
      ++want[chosen[i]];
      ++want_physical[physical];
    }
    EXPECT_EQ(ToHost<int32_t>(counts, c.experts), want);
    EXPECT_EQ(ToHost<int32_t>(physical_counts, c.experts + 5), want_physical);
    EXPECT_EQ(ToHost<int32_t>(rows, log_rows * c.k), want_rows);
    EXPECT_EQ(ToHost<int32_t>(physical_rows, log_rows * c.k), want_physical_rows);
  }
}

// A layer on one GPU with two redundant experts, and an observer.
struct Observed {
  explicit Observed(TestLayer test_layer, SummingObserver wanted = {}, Without without = {},
                    ReplicaChooser* chooser = nullptr)
      : layer(std::move(test_layer)), observer(std::move(wanted)) {
    MoeOptions options;
    options.num_redundant_experts = 2;
    layer.config.layer = 4;
    layer.config.placement = ExpertPlacement(10, {3, 9, 0, 1, 2, 8, 7, 6, 5, 4, 9, 0});
    gpu.emplace(layer, DType::kF32, options, kMaxTokens, without, &observer, chooser);
    replicas = layer.config.placement.CommonReplicas();
  }
  // Runs a pass of `tokens` rows, of which `rows` are valid and the others padding.
  void Run(int64_t tokens, int64_t rows, uint32_t seed = 7) {
    gpu->state->BeginPass(rows, 0);
    gpu->Forward(layer, tokens, seed);
    gpu->state->EndPass();
    gpu->state->ReportRouting(0);
  }
  std::vector<int32_t> Chosen(int64_t tokens, int64_t rows, uint32_t seed = 7) const {
    std::vector<int32_t> ids = ChosenOnCpu(layer, layer.Hidden(tokens, seed), tokens);
    ids.resize(rows * layer.spec.top_k);
    return ids;
  }
  std::vector<int32_t> Physical(std::vector<int32_t> logical) const {
    for (int32_t& id : logical)
      if (id >= 0) id = replicas[id];
    return logical;
  }
  void ExpectCounts(const std::vector<int32_t>& chosen) const {
    EXPECT_EQ(observer.logical.at(4), CountsOf(chosen, 10));
    EXPECT_EQ(observer.physical.at(4), CountsOf(Physical(chosen), 12));
  }

  TestLayer layer;
  SummingObserver observer;
  std::optional<OnGpu> gpu;
  std::vector<int32_t> replicas;
};

TEST(CudaRoutingLog, CountsAreThoseOfTheCpu) {
  SKIP_WITHOUT_GPU();
  for (const bool plain : {false, true}) {
    Observed observed(TestLayer({.shared = true}), {}, {.fused = plain});
    std::vector<int32_t> all;
    for (const int64_t tokens : {401, 0, 1, 5, 131}) {
      const auto seed = static_cast<uint32_t>(tokens);
      observed.Run(tokens, tokens, seed);
      const auto chosen = observed.Chosen(tokens, tokens, seed);
      all.insert(all.end(), chosen.begin(), chosen.end());
      observed.ExpectCounts(all);
    }
    EXPECT_EQ(observed.observer.placements, 1);
  }
}

TEST(CudaRoutingLog, PaddingAndMissingExpertsDoNotCount) {
  SKIP_WITHOUT_GPU();
  Observed padded(TestLayer({}));
  padded.Run(40, 33);
  padded.ExpectCounts(padded.Chosen(40, 33));
  Observed none(TestLayer({.no_experts = true}));
  none.Run(20, 20);
  none.ExpectCounts({});
}

TEST(CudaRoutingLog, CapturedPassesFollowStartAndStop) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 20;
  Observed observed(TestLayer({.shared = true}));
  kernels::Device& device = *observed.gpu->device;
  const size_t bytes = kTokens * observed.layer.spec.hidden * sizeof(float);
  const auto x = device.Allocate(bytes), y = device.Allocate(bytes);
  const std::vector<int64_t> counts = {kTokens};
  std::vector<int32_t> all;
  for (uint32_t pass = 0; pass < 9; ++pass) {
    SCOPED_TRACE(pass);
    const bool active = observed.observer.active = pass / 2 % 2 == 0;
    const int64_t rows = kTokens - pass % 3;  // the padding changes from pass to pass
    const auto hidden = observed.layer.Hidden(kTokens, pass);
    device.CopyIn(x.get(), hidden.data(), bytes);
    observed.gpu->state->BeginPass(rows, 0);
    device.Run(/*key=*/1, [&] {
      observed.gpu->moe->Forward(*observed.gpu->state, static_cast<float*>(x.get()),
                                 {counts, counts}, static_cast<float*>(y.get()));
    });
    observed.gpu->state->EndPass();
    const int before = observed.observer.calls;
    observed.gpu->state->ReportRouting(0);
    EXPECT_EQ(observed.observer.calls, before + (active ? 1 : 0));
    if (!active) continue;
    const auto chosen = observed.Chosen(kTokens, rows, pass);
    all.insert(all.end(), chosen.begin(), chosen.end());
    observed.ExpectCounts(all);
  }
}

// Whether passes are captured or not: the times of stages are within the time of the pass, and the
// outputs do not depend on the clock.
TEST(CudaRoutingLog, ClockedPassesHaveTheTimesOfTheirStages) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 20;
  constexpr double kSlack = 20'000;  // nanoseconds between the clocks of kernels and of events
  SummingObserver wanted;
  wanted.times = true;
  for (const uint64_t key : {0, 1}) {
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(::testing::Message() << key << ' ' << fused);
      Observed observed(TestLayer({.shared = true}), wanted, {.fused = !fused});
      kernels::Device& device = *observed.gpu->device;
      const cudaStream_t stream = CudaDevice::From(device).stream();
      MoeState& state = *observed.gpu->state;
      const size_t count = kTokens * observed.layer.spec.hidden;
      const auto x = device.Allocate(count * sizeof(float)),
                 y = device.Allocate(count * sizeof(float));
      const auto hidden = observed.layer.Hidden(kTokens, 3);
      device.CopyIn(x.get(), hidden.data(), count * sizeof(float));
      const std::vector<int64_t> counts = {kTokens};
      std::vector<float> want(count), got(count);
      const Event begin, end;
      for (uint64_t pass = 1; pass <= 2 * RoutingLog::kClockedPasses; ++pass) {
        state.pass = pass;
        state.BeginPass(kTokens, 0);
        const bool clocked = (pass + 1) % RoutingLog::kClockedPasses == 0;
        ASSERT_EQ(state.clocked, clocked);
        begin.Record(stream);
        device.Run(key == 0 ? 0 : key | (clocked ? kernels::Device::kVariant : 0), [&] {
          observed.gpu->moe->Forward(state, static_cast<float*>(x.get()), {counts, counts},
                                     static_cast<float*>(y.get()));
        });
        end.Record(stream);
        state.EndPass();
        state.ReportRouting(pass);
        device.CopyOut(got.data(), y.get(), count * sizeof(float));
        if (pass == 1) want = got;
        ASSERT_EQ(got, want) << pass;
        ASSERT_EQ(observed.observer.timed.contains(pass), clocked) << pass;
        if (!clocked) continue;
        const MoeTimes& times = observed.observer.timed.at(pass);
        EXPECT_EQ(times.dispatch, 0);  // one rank has no exchange
        EXPECT_GT(times.experts, 0);
        EXPECT_GT(times.combine, 0);
        EXPECT_LE(static_cast<double>(times.experts + times.combine),
                  end.MillisecondsSince(begin) * 1e6 + kSlack);
      }
      EXPECT_EQ(observed.observer.timed.size(), 2u);
    }
  }
}

// Launches a pass before the results of the previous one are collected.
TEST(CudaRoutingLog, APassMayEndBeforeThePreviousIsReported) {
  SKIP_WITHOUT_GPU();
  Observed observed(TestLayer({.shared = true}));
  MoeState& state = *observed.gpu->state;
  std::vector<int32_t> all;
  std::vector<uint64_t> reported;
  const auto tokens_of = [](uint64_t pass) { return static_cast<int64_t>(20 + pass); };
  for (uint64_t pass = 1; pass <= 5; ++pass) {
    SCOPED_TRACE(pass);
    const int64_t tokens = tokens_of(pass);
    state.pass = pass;
    state.BeginPass(tokens, 0);
    observed.gpu->Forward(observed.layer, tokens, static_cast<uint32_t>(pass));
    state.EndPass();
    state.ReportRouting(pass - 1);
    EXPECT_EQ(observed.observer.counted_passes, reported);
    if (pass > 1) observed.ExpectCounts(all);
    const auto chosen = observed.Chosen(tokens, tokens, static_cast<uint32_t>(pass));
    all.insert(all.end(), chosen.begin(), chosen.end());
    reported.push_back(pass);
  }
  state.ReportRouting(5);
  observed.ExpectCounts(all);
  EXPECT_EQ(observed.observer.counted_passes, reported);
}

TEST(CudaRoutingLog, TokensAreReportedByRow) {
  SKIP_WITHOUT_GPU();
  SummingObserver wanted;
  wanted.tokens = true;
  Observed observed(TestLayer({}), wanted);
  constexpr int64_t kTokens = 37, kFirst = 100;
  observed.gpu->state->BeginPass(kTokens - 2, kFirst);
  const auto hidden = observed.layer.Hidden(kTokens);
  const DeviceMemory x = ToDevice(hidden), y(x.bytes());
  const std::vector<int64_t> counts = {kTokens}, decode = {12};
  MoeTokens tokens{.group_tokens = counts, .group_decode_tokens = decode, .first_row = kFirst};
  observed.gpu->moe->Forward(*observed.gpu->state, x.as<float>(), tokens, y.as<float>());
  observed.gpu->state->EndPass();
  observed.gpu->state->ReportRouting(0);
  const auto chosen = observed.Chosen(kTokens, kTokens);
  const auto& rows = observed.observer.rows.at(4);
  ASSERT_EQ(std::ssize(rows), kTokens - 2);
  for (int64_t t = 0; t < kTokens - 2; ++t) {
    const std::vector<int32_t> want(chosen.begin() + 3 * t, chosen.begin() + 3 * (t + 1));
    EXPECT_EQ(rows.at(kFirst + t), want) << t;
    EXPECT_EQ(observed.observer.physical_rows.at(4).at(kFirst + t), observed.Physical(want)) << t;
  }
  EXPECT_TRUE(observed.observer.logical.empty());
}

TEST(CudaRoutingLog, DispatchedRowsAreCountedByExpert) {
  SKIP_WITHOUT_GPU();
  SummingObserver wanted;
  wanted.dispatch = true;
  Observed observed(TestLayer({}), wanted);
  std::vector<int32_t> all;
  for (const int64_t tokens : {131, 0, 6}) {
    observed.Run(tokens, tokens);
    const auto chosen = observed.Chosen(tokens, tokens);
    all.insert(all.end(), chosen.begin(), chosen.end());
  }
  EXPECT_EQ(observed.observer.dispatched.at(4), CountsOf(observed.Physical(all), 12));
}

// Records for which rounds it is called.
struct RecordingChooser : RoundRobinChooser {
  void Choose(const RoundToChoose& round, const TopK& logical, TopK* physical) override {
    rounds.push_back(round);
    RoundRobinChooser::Choose(round, logical, physical);
  }
  std::vector<RoundToChoose> rounds;
};

TEST(CudaHostChoice, CapturedPassesHaveTheirOwnNumbers) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 20;
  RecordingChooser chooser;
  Observed observed(TestLayer({}), {}, {}, &chooser);
  kernels::Device& device = *observed.gpu->device;
  const size_t bytes = kTokens * observed.layer.spec.hidden * sizeof(float);
  const auto x = device.Allocate(bytes), y = device.Allocate(bytes);
  const std::vector<int64_t> counts = {kTokens};
  const auto hidden = observed.layer.Hidden(kTokens);
  device.CopyIn(x.get(), hidden.data(), bytes);
  MoeState& state = *observed.gpu->state;
  for (uint64_t pass = 1; pass <= 6; ++pass) {
    state.pass = pass;
    state.micro_batch = static_cast<int>(pass % 2);
    state.BeginPass(kTokens, 0);
    device.Run(/*key=*/1, [&] {
      observed.gpu->moe->Forward(state, static_cast<float*>(x.get()), {counts, counts},
                                 static_cast<float*>(y.get()));
    });
    state.EndPass();
    state.ReportRouting(pass - 1);
  }
  device.Synchronize();
  ASSERT_EQ(chooser.rounds.size(), 6u);
  for (uint64_t pass = 1; pass <= 6; ++pass) {
    EXPECT_EQ(chooser.rounds[pass - 1].pass, pass);
    EXPECT_EQ(chooser.rounds[pass - 1].micro_batch, static_cast<int>(pass % 2));
    EXPECT_EQ(chooser.rounds[pass - 1].layer, 4);
    EXPECT_EQ(chooser.rounds[pass - 1].first_token, 0);
  }
}

// Runs passes directly, captured and replayed. Outputs do not depend on the chosen replicas; counts
// do.
TEST(CudaHostChoice, ChoosesReplicasOfEveryPass) {
  SKIP_WITHOUT_GPU();
  Observed still(TestLayer({.shared = true}));
  RoundRobinChooser chooser, expected;
  Observed observed(TestLayer({.shared = true}), {}, {}, &chooser);
  expected.OnPlacement(4, observed.layer.config.placement);
  kernels::Device& device = *observed.gpu->device;
  std::vector<int32_t> all;
  const int64_t most = 64 * observed.layer.spec.hidden;
  const auto x = device.Allocate(most * sizeof(float)), y = device.Allocate(most * sizeof(float));
  for (uint32_t pass = 0; pass < 8; ++pass) {
    SCOPED_TRACE(pass);
    const int64_t tokens = pass % 2 == 0 ? 20 : 3;
    const std::vector<int64_t> counts = {tokens};
    const auto hidden = observed.layer.Hidden(tokens, pass);
    const size_t bytes = hidden.size() * sizeof(float);
    device.CopyIn(x.get(), hidden.data(), bytes);
    observed.gpu->state->BeginPass(tokens, 0);
    device.Run(/*key=*/1 + pass % 2, [&] {
      observed.gpu->moe->Forward(*observed.gpu->state, static_cast<float*>(x.get()),
                                 {counts, counts}, static_cast<float*>(y.get()));
    });
    observed.gpu->state->EndPass();
    std::vector<float> out(hidden.size());
    device.CopyOut(out.data(), y.get(), bytes);
    observed.gpu->state->ReportRouting(0);
    EXPECT_TRUE(kernels::SameBits(out, still.gpu->Forward(still.layer, tokens, pass)));
    TopK logical{.tokens = tokens, .k = 3, .ids = observed.Chosen(tokens, tokens, pass)}, physical;
    expected.Choose({.layer = 4}, logical, &physical);
    all.insert(all.end(), physical.ids.begin(), physical.ids.end());
    EXPECT_EQ(observed.observer.physical.at(4), CountsOf(all, 12));
  }
}

}  // namespace
}  // namespace switchyard::cuda
