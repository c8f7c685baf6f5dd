// Models of several ranks on devices, with plain operations on CPUs, against Model<float> on one.
#include "train/device/ranks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "train/device/model.h"
#include "train/device/row_exchange.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/catalog.h"
#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

using testing::OneRank;
using testing::RandomBatch;
using testing::RelativeError;
using testing::SmallConfig;
using testing::Tensors;

constexpr StepSize kRanksSize = {.targets = 50, .tokens = 71};

// What a step gives on all ranks together.
struct StepOfRanks {
  Losses losses;
  Tensors gradients, values;  // of all parameters; values after an update
  std::vector<std::vector<float>> loads;
  Model<float>::ReplayCounts replay;
  GradientNorm norm;
};

// Micro-batches whose sequences are divided among the ranks: ragged, and with fewer sequences than
// ranks. About half of the tokens have given experts, and some slots are empty.
std::vector<Batch> RanksBatches(const ModelConfig& config, bool given) {
  std::vector<Batch> batches = {RandomBatch({7, 1, 12, 5, 3}, config.vocab_size, 3),
                                RandomBatch({6}, config.vocab_size, 4), Batch(),
                                RandomBatch({3, 9, 1, 2, 8, 11, 3}, config.vocab_size, 5)};
  for (Batch& batch : batches) {
    if (!given) continue;
    batch.experts = testing::RandomExperts(config, batch.size(), 0.5, 9);
    for (size_t i = 0; i < batch.experts.size(); i += 17) batch.experts[i] = -1;
  }
  return batches;
}

// The reference, on one rank without a device.
StepOfRanks WithoutRanks(const ModelConfig& config, const LossOptions& options,
                         const std::vector<Batch>& batches) {
  OneRank<float> one(config, options);
  StepOfRanks step;
  Pass<float> pass;
  for (const Batch& batch : batches) step.losses += one.model.Run(batch, kRanksSize, true, &pass);
  step.gradients = testing::Gradients(one.model);
  step.loads = one.model.loads();
  step.replay = one.model.replay();
  const Catalog catalog(one.model.parameters(), nullptr);
  step.norm = NormOfGradients(catalog, one.pool);
  AdamW adam(one.model.parameters(), {.epsilon = 1e-3});
  adam.Step(0.01, 0.5, one.pool);
  for (const Parameter<float>* p : one.model.parameters()) step.values[p->name] = p->value;
  return step;
}

Batch PartOf(const Batch& batch, const Layout& layout, int rank) {
  if (batch.sequences() == 0) return {};
  const Range part = EvenPart(batch.sequences(), layout.dp, rank);
  return testing::Sequences(batch, part.begin, part.end);
}

// Runs collectives as late as DeviceRanks allows. On a GPU they run at any time before.
class DelayedRanks final : public DeviceRanks {
 public:
  explicit DelayedRanks(const DeviceGroups& groups) : DeviceRanks(groups) {
    for (Collectives** const group : {&groups_.all, &groups_.experts, &groups_.expert_copies}) {
      if (*group == nullptr) continue;
      delayed_.push_back(std::make_unique<Delayed>(**group, queue_));
      *group = delayed_.back().get();
    }
  }
  void Join() override { RunFirst(queue_.size()); }
  void Mark() override { marked_ = queue_.size(); }
  void JoinMarked() override { RunFirst(marked_); }

 private:
  using Queue = std::deque<std::function<void()>>;
  class Delayed final : public Collectives {
   public:
    Delayed(Collectives& group, Queue& queue) : group_(group), queue_(queue) {}
    int rank() const override { return group_.rank(); }
    int size() const override { return group_.size(); }
    void AllReduceSum(float* data, size_t count) override {
      queue_.emplace_back([=, this] { group_.AllReduceSum(data, count); });
    }
    void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override {
      queue_.emplace_back([=, this, own = std::vector<size_t>(counts.begin(), counts.end())] {
        group_.AllGatherV(in, out, own);
      });
    }
    void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override {
      queue_.emplace_back([=, this, own = std::vector<size_t>(counts.begin(), counts.end())] {
        group_.ReduceScatterV(in, out, own);
      });
    }

   private:
    Collectives& group_;
    Queue& queue_;
  };

  void RunFirst(size_t count) {
    marked_ -= std::min(marked_, count);
    for (; count > 0; --count) {
      queue_.front()();
      queue_.pop_front();
    }
  }

  Queue queue_;
  size_t marked_ = 0;  // messages before the last Mark
  std::vector<std::unique_ptr<Delayed>> delayed_;
};

// `change`: of the values of a rank, before the model is made. `delayed`: with DelayedRanks.
template <typename C>
StepOfRanks WithRanks(const ModelConfig& config, const LossOptions& options,
                      const std::vector<Batch>& batches, const Layout& layout,
                      const std::function<void(Parameter<float>&)>& change = {},
                      bool delayed = false, const DeviceOptions& device_options = {}) {
  StepOfRanks step;
  std::map<std::string, std::vector<bool>> gradients_known, values_known;
  std::mutex mutex;
  int ended = 0;  // ranks
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    const auto ranks =
        LayoutRanks::Create(arena, layout, rank, {.timeout = std::chrono::seconds(60)});
    ThreadPool pool(1);
    OneRank<float> whole(config, options);  // gives the initial weights
    Model<float> model(config, options,
                       ranks->layer_ranks({.rank = ranks->place.ep, .size = layout.ep}), pool);
    std::map<std::string, const Parameter<float>*> all;
    for (const Parameter<float>* p : whole.model.parameters()) all[p->name] = p;
    for (Parameter<float>* p : model.parameters()) {
      p->value = all.at(p->name)->value;
      if (change) change(*p);
    }
    const std::unique_ptr<TrainOps<C>> ops = MakePlainOps<C>(pool);
    std::unique_ptr<DeviceRanks> groups = MakeHostRanks(*ranks);
    if (delayed) groups = std::make_unique<DelayedRanks>(groups->groups());
    DeviceModel<C> device(model, *ops, *groups, device_options);
    for (const Batch& batch : batches)
      device.Learn(PartOf(batch, layout, rank), kRanksSize, &batch == &batches.back());
    const Losses losses = device.TakeLosses();
    const std::vector<std::vector<float>> loads = device.TakeLoads();
    const Model<float>::ReplayCounts replay = device.TakeReplay();
    device.parameters().SumGradients();
    device.parameters().GradientsToHost();
    const GradientNorm norm = device.parameters().Norm();
    std::unique_lock lock(mutex);
    step.losses += losses;
    step.loads.resize(loads.size(), std::vector<float>(config.moe->router.num_experts));
    for (size_t l = 0; l < loads.size(); ++l)
      for (size_t e = 0; e < loads[l].size(); ++e) step.loads[l][e] += loads[l][e];
    step.replay.replayed += replay.replayed;
    step.replay.agreed += replay.agreed;
    if (ended++ > 0) {
      EXPECT_EQ(norm.not_finite, step.norm.not_finite);
      EXPECT_TRUE(norm.norm == step.norm.norm || !norm.not_finite.empty());
    }
    step.norm = norm;
    if (!norm.not_finite.empty()) return;  // numbers that equal no number
    for (const Parameter<float>* p : model.parameters())
      testing::Put(*p, p->gradient, &step.gradients, &gradients_known);
    lock.unlock();
    AdamW adam(model.parameters(), {.epsilon = 1e-3});
    device.parameters().Step(0.01, 0.5, &adam);
    device.parameters().ToHost(&adam);
    lock.lock();
    for (const Parameter<float>* p : model.parameters())
      testing::Put(*p, p->value, &step.values, &values_known);
  };
  RunRankThreads(layout.ranks(), LayoutRanks::BytesPerRank(layout) + 4096, body);
  testing::ExpectWhole(values_known);
  return step;
}

void ExpectSameStep(const StepOfRanks& got, const StepOfRanks& want) {
  EXPECT_NEAR(got.losses.main, want.losses.main, 1e-5);
  EXPECT_NEAR(got.losses.mtp, want.losses.mtp, 1e-5);
  EXPECT_NEAR(got.losses.balance, want.losses.balance, 1e-5);
  EXPECT_EQ(got.loads, want.loads);
  EXPECT_EQ(got.replay.replayed, want.replay.replayed);
  EXPECT_EQ(got.replay.agreed, want.replay.agreed);
  EXPECT_NEAR(got.norm.norm, want.norm.norm, 1e-5 * want.norm.norm);
  EXPECT_EQ(got.norm.not_finite, "");
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_LT(RelativeError(got.gradients.at(name), gradient), 2e-5) << name;
  for (const auto& [name, value] : want.values)
    EXPECT_LT(RelativeError(got.values.at(name), value), 2e-5) << name;
}

class DeviceRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void ExpectLayout(const Layout& layout, bool given) {
    SCOPED_TRACE(layout.ToString());
    const std::vector<Batch> batches = RanksBatches(config_, given);
    ExpectSameStep(WithRanks<float>(config_, options_, batches, layout),
                   WithoutRanks(config_, options_, batches));
  }

  const ModelConfig config_ = ParseModelConfig(SmallConfig(GetParam()));
  const LossOptions options_ = {.balance = {.batch = 0.3, .sequence = 0.2, .z = 0.1}};
};

TEST_P(DeviceRanksTest, CopiesOfTheModelLearnAsOneRank) {
  ExpectLayout({.dp = 2}, false);
  ExpectLayout({.dp = 4}, true);
}

TEST_P(DeviceRanksTest, DividedExpertsLearnAsOneRank) {
  ExpectLayout({.ep = 2, .dp = 2}, false);
  ExpectLayout({.ep = 2, .dp = 2}, true);
  ExpectLayout({.ep = 4, .dp = 4}, false);
}

TEST_P(DeviceRanksTest, CopiesOfDividedExpertsLearnAsOneRank) {
  ExpectLayout({.ep = 2, .dp = 4}, true);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRanksTest,
                         ::testing::Values("mixtral", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3"));

// A rank may have no rows of a module, while others have some.
TEST(DeviceRanks, MtpModulesLearnAsOneRank) {
  const ModelConfig config = ParseModelConfig(SmallConfig("deepseek_v3"));
  const LossOptions options = {
      .balance = {.batch = 0.1, .sequence = 0.2}, .mtp_layers = 2, .mtp_weight = 0.4};
  const std::vector<Batch> batches = RanksBatches(config, true);
  const StepOfRanks want = WithoutRanks(config, options, batches);
  for (const Layout& layout : {Layout{.ep = 2, .dp = 4}, Layout{.ep = 4, .dp = 4}})
    ExpectSameStep(WithRanks<float>(config, options, batches, layout), want);
}

TEST(DeviceRanks, EqualRunsHaveEqualBits) {
  const ModelConfig config = ParseModelConfig(SmallConfig("qwen3_moe"));
  const std::vector<Batch> batches = RanksBatches(config, false);
  const StepOfRanks one = WithRanks<BF16>(config, {}, batches, {.ep = 2, .dp = 2}),
                    two = WithRanks<BF16>(config, {}, batches, {.ep = 2, .dp = 2});
  EXPECT_EQ(one.losses.main, two.losses.main);
  EXPECT_EQ(one.values, two.values);
}

// No message reads or writes memory that is released or used before it is joined.
TEST(DeviceRanks, MessagesMayRunAtTheLastMoment) {
  for (const char* kind : {"qwen3_moe", "deepseek_v3"}) {
    const ModelConfig config = ParseModelConfig(SmallConfig(kind));
    const LossOptions options = {.balance = {.batch = 0.3, .sequence = 0.2},
                                 .mtp_layers = std::string(kind) == "deepseek_v3" ? 1 : 0,
                                 .mtp_weight = 0.4};
    const std::vector<Batch> batches = RanksBatches(config, false);
    for (const Layout& layout :
         {Layout{.dp = 2}, Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 4}}) {
      SCOPED_TRACE(kind + (", " + layout.ToString()));
      const StepOfRanks want = WithRanks<BF16>(config, options, batches, layout),
                        got = WithRanks<BF16>(config, options, batches, layout, {}, true);
      // Their sum over ranks is in any order.
      EXPECT_NEAR(got.losses.main, want.losses.main, 1e-12);
      EXPECT_NEAR(got.losses.balance, want.losses.balance, 1e-12);
      EXPECT_NEAR(got.losses.mtp, want.losses.mtp, 1e-12);
      EXPECT_EQ(got.norm.norm, want.norm.norm);
      EXPECT_EQ(got.gradients, want.gradients);
      EXPECT_EQ(got.values, want.values);
    }
  }
}

// The outputs of many rows are sent in two parts (RowPart). A rank with few rows has an empty first
// part.
TEST(DeviceRanks, OutputsInTwoPartsLearnAsOneRank) {
  const ModelConfig config = ParseModelConfig(SmallConfig("qwen3_moe"));
  std::vector<int> some(32, 23), others(24, 5);
  std::fill_n(some.begin(), 16, 30);
  std::fill_n(others.begin(), 12, 30);
  const std::vector<Batch> batches = {RandomBatch(some, config.vocab_size, 6),
                                      RandomBatch(others, config.vocab_size, 7)};
  for (const int64_t rows : {16 * 30, 16 * 23, 12 * 30}) EXPECT_GT(RowPart(0, rows).size(), 0);
  EXPECT_EQ(RowPart(0, 12 * 5).size(), 0);
  const StepOfRanks want = WithoutRanks(config, {}, batches);
  for (const bool delayed : {false, true}) {
    const StepOfRanks got = WithRanks<float>(config, {}, batches, {.ep = 2, .dp = 2}, {}, delayed);
    EXPECT_NEAR(got.losses.main, want.losses.main, 1e-5 * want.losses.main);
    for (const auto& [name, gradient] : want.gradients)
      EXPECT_LT(RelativeError(got.gradients.at(name), gradient), 5e-5) << name;
    for (const auto& [name, value] : want.values)
      EXPECT_LT(RelativeError(got.values.at(name), value), 5e-5) << name;
  }
}

TEST(DeviceRanks, PartsOfRowsHaveTheSumsOfAllRows) {
  constexpr int64_t kWidth = 3;
  for (const int64_t rows : {0, 1, 2, 7, 341, 342, 511, 1366, 1500}) {
    const Range first = RowPart(0, rows), second = RowPart(1, rows);
    EXPECT_EQ(first.size() > 0, rows >= 342);
    EXPECT_EQ(first.begin, 0);
    EXPECT_EQ(first.end, second.begin);
    EXPECT_EQ(second.end, rows);
    EXPECT_LE(first.size(), second.size());
  }
  for (const std::vector<int64_t>& of_ranks :
       {std::vector<int64_t>{5, 0, 1400}, std::vector<int64_t>{700, 400, 345},
        std::vector<int64_t>{1, 1, 2}, std::vector<int64_t>{9}, std::vector<int64_t>{800}}) {
    const Layout layout = {.ep = static_cast<int>(of_ranks.size()),
                           .dp = static_cast<int>(of_ranks.size())};
    const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
      const auto ranks =
          LayoutRanks::Create(arena, layout, rank, {.timeout = std::chrono::seconds(60)});
      ThreadPool pool(1);
      const std::unique_ptr<TrainOps<float>> ops = MakePlainOps<float>(pool);
      DelayedRanks groups({.experts = ranks->experts.get()});
      DeviceMemory memory(ops->device());
      DeviceParameters<float> none({}, *ops, groups, memory);
      const DeviceContext<float> on{*ops, groups, memory, none};
      const DeviceRows rows{.of_ranks = of_ranks};
      const RowExchange<float> exchange(on, rows, 0);
      std::vector<float> parts(exchange.rows() * kWidth);
      for (size_t i = 0; i < parts.size(); ++i)
        parts[i] = static_cast<float>((i * 7919 + static_cast<size_t>(rank) * 104729) % 1000) / 7;
      std::vector<float> want(of_ranks[rank] * kWidth);
      exchange.Sum("whole", parts.data(), kWidth, want.data());
      groups.Join();
      DeviceRowSums sums;
      const auto add = [&](const Range& tokens, float* out) {
        std::copy_n(parts.data() + tokens.begin * kWidth, tokens.size() * kWidth, out);
      };
      exchange.SumInParts("parts", kWidth, add, &sums);
      ASSERT_TRUE(sums.started);
      const Range first = RowPart(0, of_ranks[rank]) * kWidth;
      const std::vector<float> unknown(want.size(), -1.0f);
      std::ranges::copy(unknown, sums.sums.data());
      groups.JoinMarked();
      EXPECT_TRUE(std::equal(want.begin(), want.begin() + first.end, sums.sums.data()));
      groups.Join();
      EXPECT_TRUE(std::ranges::equal(want, std::span(sums.sums.data(), want.size())));
    };
    RunRankThreads(layout.ranks(), LayoutRanks::BytesPerRank(layout) + 4096, body);
  }
}

// Rows go to experts in FP8. One rank rounds them, too. A rounding error of a sum may change a
// code, and blocks of 128 tokens are different ones with other ranks.
TEST(DeviceRanks, Fp8ModelsLearnAsOneRank) {
  const ModelConfig config = ParseModelConfig(testing::Fp8Config("deepseek_v3"));
  const std::vector<Batch> batches = RanksBatches(config, true);
  const auto smaller = [](Parameter<float>& p) {
    for (float& x : p.value) x *= p.shape.size() > 1 ? 0.25f : 1.0f;
  };
  const auto run = [&](const Layout& layout) {
    return WithRanks<BF16>(config, {}, batches, layout, smaller, false, {.fp8 = true});
  };
  const StepOfRanks want = run({});
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 4}}) {
    SCOPED_TRACE(layout.ToString());
    const StepOfRanks got = run(layout);
    EXPECT_NEAR(got.losses.main, want.losses.main, 1e-2 * want.losses.main);
    EXPECT_NEAR(got.norm.norm, want.norm.norm, 0.1 * want.norm.norm);
    ASSERT_EQ(got.values.size(), want.values.size());
    for (const auto& [name, value] : want.values)
      EXPECT_LT(RelativeError(got.values.at(name), value), 0.1) << name;
  }
}

// Only the rank of an expert has its gradient, but all ranks name it.
TEST(DeviceRanks, AllRanksNameTheFirstGradientThatIsNotFinite) {
  const ModelConfig config = ParseModelConfig(SmallConfig("mixtral"));
  const auto infinite = [](Parameter<float>& p) {
    if (p.name.find("layers.1.block_sparse_moe.experts.5.w2") != std::string::npos)
      p.value[3] = std::numeric_limits<float>::infinity();
  };
  const StepOfRanks step =
      WithRanks<float>(config, {}, RanksBatches(config, false), {.ep = 2, .dp = 2}, infinite);
  EXPECT_NE(step.norm.not_finite, "");
}

}  // namespace
}  // namespace switchyard::train
