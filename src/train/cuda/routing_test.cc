#include "train/cuda/routing.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "core/parallel.h"
#include "train/cuda/head_loss.h"
#include "train/cuda/testing.h"
#include "train/layers/router.h"

namespace switchyard::train::gpu {
namespace {

class TrainRouting : public TrainCudaTest {
 protected:
  ThreadPool pool_{2};
};

struct RouterCase {
  RouterConfig config;
  BalanceLosses losses;
};

std::vector<RouterCase> RouterCases() {
  using S = RouterConfig::Scoring;
  const BalanceLosses all = {.batch = 0.3, .sequence = 0.2, .z = 0.1};
  return {
      {{.num_experts = 40, .top_k = 6, .scoring = S::kSoftmax}, {}},
      {{.num_experts = 64, .top_k = 8, .scoring = S::kSoftmax, .renormalize = true}, all},
      {{.num_experts = 33,
        .top_k = 3,
        .scoring = S::kSigmoid,
        .renormalize = true,
        .routed_scaling_factor = 2.5f},
       all},
      {{.num_experts = 8, .top_k = 2, .scoring = S::kSigmoid}, {.sequence = 0.4}},
      {{.num_experts = 300, .top_k = 16, .scoring = S::kTopKSoftmax, .routed_scaling_factor = 1.5f},
       {.batch = 0.5, .z = 0.2}}};
}

// The CPU's router with the identity as weight: its inputs are the logits, and the gradient of its
// input is that of the logits.
TEST_F(TrainRouting, WeightsLossesAndGradientsAreThoseOfTheCpu) {
  for (const RouterCase& c : RouterCases()) {
    const int64_t experts = c.config.num_experts, k = c.config.top_k;
    const std::vector<int32_t> begins = {0, 30, 31, 101};
    const train::RowLayout layout = train::RowLayout::Of(begins);
    const int64_t m = layout.rows();
    const double step_tokens = 150.0;
    ParameterSet<double> set;
    Router<double> router(c.config, experts, "gate", "", set);
    for (int64_t e = 0; e < experts; ++e) set.all().front().value[e * experts + e] = 1.0;
    const TestArray logits = TestArray::Random(false, m * experts, random_, 3.0),
                    dweights = TestArray::Random(false, m * k, random_),
                    scores = TestArray::Filled(false, m * experts, 77),
                    weights = TestArray::Filled(false, m * k, 77),
                    dlogits = TestArray::Filled(false, m * experts, 77),
                    losses = TestArray::Filled(false, m, 77);
    RouterState<double> state;
    // A token whose experts are given, and that has a slot without expert.
    state.given.assign(m * k, -1);
    state.given[5 * k] = 1;
    router.Forward(logits.values.data(), m, &state, pool_);
    const RouterShape shape = {.m = m,
                               .experts = static_cast<int>(experts),
                               .top_k = static_cast<int>(k),
                               .scoring = static_cast<Scoring>(c.config.scoring),
                               .renormalize = c.config.renormalize,
                               .scaling = c.config.routed_scaling_factor};
    const cuda::DeviceMemory ids = Upload(state.topk.ids), device_begins = Upload(begins);
    RouterWeights(shape, logits.floats(), ids.as<int32_t>(), scores.floats(), weights.floats(),
                  nullptr);
    ExpectClose(scores, state.scores, 1e-5, "scores");
    ExpectClose(weights, state.weights, 1e-5, "weights");

    const int sequences = static_cast<int>(layout.sequences());
    const cuda::DeviceMemory counts = Upload(std::vector<int32_t>(experts)),
                             per_sequence = Upload(std::vector<int32_t>(sequences * experts)),
                             tokens = Upload(std::vector<int32_t>{static_cast<int32_t>(m)}),
                             lengths = Upload(std::vector<int32_t>{30, 1, 70}),
                             batch = Upload(std::vector<float>(experts)),
                             sequence = Upload(std::vector<float>(sequences * experts)),
                             total = Upload(std::vector<double>{1e9});
    CountExperts(shape, ids.as<int32_t>(), nullptr, 0, counts.as<int32_t>(), nullptr);
    CountExperts(shape, ids.as<int32_t>(), device_begins.as<int32_t>(), sequences,
                 per_sequence.as<int32_t>(), nullptr);
    const std::vector<int32_t> got_counts = Download<int32_t>(counts, experts);
    EXPECT_EQ(std::vector<float>(got_counts.begin(), got_counts.end()), state.loads);
    BalanceCoefficients(shape, counts.as<int32_t>(), tokens.as<int32_t>(), 1, c.losses.batch,
                        step_tokens, batch.as<float>(), nullptr);
    BalanceCoefficients(shape, per_sequence.as<int32_t>(), lengths.as<int32_t>(), sequences,
                        c.losses.sequence, step_tokens, sequence.as<float>(), nullptr);
    BalanceParams balance = {.z = static_cast<float>(c.losses.z / step_tokens)};
    if (c.losses.batch != 0) balance.batch = batch.as<float>();
    if (c.losses.sequence != 0) {
      balance.sequence = sequence.as<float>();
      balance.begins = device_begins.as<int32_t>();
      balance.sequences = sequences;
    }
    double want_loss = 0;
    if (c.losses.any())
      want_loss = router.AddBalance(c.losses, layout, step_tokens, {}, TensorGroup(), &state);
    BalanceLossesOfTokens(shape, balance, logits.floats(), scores.floats(), losses.floats(),
                          nullptr);
    SumInOrder(losses.floats(), m, false, total.as<double>(), nullptr);
    EXPECT_NEAR(Download<double>(total, 1)[0], want_loss, 1e-5 * std::abs(want_loss));

    RouterGradient(shape, balance, logits.floats(), scores.floats(), ids.as<int32_t>(),
                   weights.floats(), dweights.floats(), dlogits.floats(), nullptr);
    std::vector<double> want(m * experts);
    router.Backward(logits.values.data(), m, state, dweights.values.data(), want.data(), pool_);
    ExpectClose(dlogits, want, 2e-5, "gradient of the logits");
  }
}

// A rank without tokens.
TEST_F(TrainRouting, NoTokensAreAllowed) {
  const RouterShape shape = {.m = 0, .experts = 8, .top_k = 2};
  RouterWeights(shape, nullptr, nullptr, nullptr, nullptr, nullptr);
  CountExperts(shape, nullptr, nullptr, 0, nullptr, nullptr);
  BalanceLossesOfTokens(shape, {}, nullptr, nullptr, nullptr, nullptr);
  RouterGradient(shape, {}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const ExpertRowsShape rows = {.m = 0, .hidden = 8, .k = 2};
  GatherExpertRows(rows, {}, {}, nullptr);
  CombineExpertRows(rows, {}, nullptr, {}, {}, nullptr);
  CombineExpertRowsGradient(rows, {}, {}, nullptr, {}, nullptr, nullptr);
  cuda::Check(cudaDeviceSynchronize(), "routing without tokens");
}

TEST_F(TrainRouting, TooManyExpertsAreRefused) {
  const RouterShape shape = {.m = 1, .experts = 513, .top_k = 1};
  EXPECT_THROW(RouterWeights(shape, nullptr, nullptr, nullptr, nullptr, nullptr), Error);
}

struct Order {
  std::vector<int32_t> position, begins;
  std::vector<int32_t> slots;  // the slot of each position
};
Order OrderOf(const std::vector<int32_t>& ids, int experts) {
  const auto count = static_cast<int64_t>(ids.size());
  const cuda::DeviceMemory on_device = Upload(ids), position = Upload(std::vector<int32_t>(count)),
                           begins = Upload(std::vector<int32_t>(experts + 1, 77)),
                           scratch = Upload(std::vector<int32_t>(SlotOrderScratch(count, experts)));
  OrderSlots(on_device.as<int32_t>(), count, experts,
             {.position = position.as<int32_t>(), .begins = begins.as<int32_t>()},
             scratch.as<int32_t>(), nullptr);
  Order order = {.position = Download<int32_t>(position, count),
                 .begins = Download<int32_t>(begins, experts + 1)};
  order.slots.resize(order.begins.back());
  for (int64_t slot = 0; slot < count; ++slot)
    if (order.position[slot] >= 0) order.slots[order.position[slot]] = static_cast<int32_t>(slot);
  return order;
}

TEST_F(TrainRouting, SlotsAreOrderedByExpertThenBySlot) {
  for (const int64_t count : {0, 1, 255, 257, 3000, 20000})
    for (const int experts : {1, 7, 40, 300}) {
      std::vector<int32_t> ids(count);
      // Some experts without rows, some slots without an expert.
      for (int32_t& id : ids) {
        id = static_cast<int32_t>(random_() % (experts + 1)) - 1;
        if (id % 5 == 3) id = -1;
      }
      const Order got = OrderOf(ids, experts);
      std::vector<int32_t> slots, begins = {0}, position(count, -1);
      for (int e = 0; e < experts; ++e) {
        for (int64_t i = 0; i < count; ++i) {
          if (ids[i] != e) continue;
          position[i] = static_cast<int32_t>(slots.size());
          slots.push_back(static_cast<int32_t>(i));
        }
        begins.push_back(static_cast<int32_t>(slots.size()));
      }
      EXPECT_EQ(got.begins, begins);
      EXPECT_EQ(got.slots, slots);
      EXPECT_EQ(got.position, position);
    }
}

TEST_F(TrainRouting, RowsOfExpertsAndTheirGradients) {
  for (const bool bf16 : {false, true}) {
    const int64_t m = 61, hidden = bf16 ? 140 : 1100;
    const int k = bf16 ? 3 : 19, experts = 9;
    std::vector<int32_t> ids(m * k);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % (experts + 2)) - 2;
    for (int32_t& id : ids) id = std::max(id, -1);
    const Order order = OrderOf(ids, experts);
    const auto rows = static_cast<int64_t>(order.slots.size());
    const cuda::DeviceMemory position = Upload(order.position);
    const ExpertRowsShape shape = {
        .m = m, .hidden = hidden, .k = k, .position = position.as<int32_t>()};
    const TestArray x = TestArray::Random(bf16, m * hidden, random_),
                    gathered = TestArray::Filled(bf16, m * k * hidden, 77),
                    outputs = TestArray::Random(bf16, m * k * hidden, random_),
                    weights = TestArray::Random(false, m * k, random_),
                    base = TestArray::Random(bf16, m * hidden, random_),
                    y = TestArray::Filled(bf16, m * hidden, 77),
                    sums = TestArray::Filled(bf16, m * hidden, 77),
                    dweights = TestArray::Filled(false, m * k, 77);
    GatherExpertRows(shape, x, gathered, nullptr);
    CombineExpertRows(shape, outputs, weights.floats(), base, y, nullptr);
    CombineExpertRows(shape, outputs, nullptr, {}, sums, nullptr);
    std::vector<double> want_rows = gathered.values, want_y = base.values, want_sums(m * hidden),
                        want_d = outputs.values, want_dweights(m * k);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t slot = order.slots[r], t = slot / k;
      for (int64_t i = 0; i < hidden; ++i) {
        want_rows[r * hidden + i] = x.values[t * hidden + i];
        const double output = outputs.values[r * hidden + i];
        want_y[t * hidden + i] += weights.values[slot] * output;
        want_sums[t * hidden + i] += output;
        want_d[r * hidden + i] = weights.values[slot] * x.values[t * hidden + i];
        want_dweights[slot] += output * x.values[t * hidden + i];
      }
    }
    EXPECT_EQ(gathered.Read(), want_rows);
    ExpectClose(y, want_y, 1e-6, "combined rows");
    ExpectClose(sums, want_sums, 1e-6, "sums of rows");
    // x serves as the gradient of the combined rows; the outputs are overwritten.
    CombineExpertRowsGradient(shape, x, outputs, weights.floats(), outputs, dweights.floats(),
                              nullptr);
    ExpectClose(outputs, want_d, 1e-6, "gradients of the outputs");
    ExpectClose(dweights, want_dweights, 1e-5, "gradients of the weights");
  }
}

}  // namespace
}  // namespace switchyard::train::gpu
