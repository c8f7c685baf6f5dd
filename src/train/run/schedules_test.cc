// Runs are bitwise independent of the schedule, the form of the exchange, and the timing of
// gradient sums. A run with pipeline stages gives the same losses and weights as a run on one rank.
#include <gmock/gmock.h>

#include <mutex>

#include "core/testing.h"
#include "train/run/layout.h"
#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

constexpr int kSteps = 12, kMicroBatches = 4;

struct Variant {
  Layout layout;
  schedule::Order order = schedule::Order::kPlain;
  bool synchronous = false, early_sums = false;
  Recompute recompute = Recompute::kNone;
  int steps = kSteps;
  int broken_rank = -1;  // the rank with an invalid token in its last micro-batch
};

struct Learned {
  std::vector<double> curve;  // losses of each step
  testing::Tensors values;    // parameters after the last step
  std::map<std::string, double> figures;
};

LossOptions Options() {
  return {.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
}

// A config of this kind with four layers.
ModelConfig Config(const std::string& kind) {
  ModelConfig config = ParseModelConfig(testing::SmallConfig(kind));
  config.layers.resize(4, config.layers.back());
  return config;
}

// Plain gradient descent. Each micro-batch has two sequences, which are distributed over the
// data-parallel parts.
class Runner {
 public:
  Runner(const ModelConfig& config, const Variant& run)
      : config_(config),
        run_(run),
        batch_(testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6)) {}

  Learned Learn() {
    const Layout& layout = run_.layout;
    learned_.curve.resize(run_.steps);
    const size_t bytes = LayoutRanks::BytesPerRank(layout) + 4096;
    std::shared_ptr<SharedArena> sums;
    if (run_.early_sums) sums = SharedArena::Create(layout.ranks(), bytes);
    RunRankThreads(layout.ranks(),
                   bytes + ExpertExchange::BytesPerRank(layout.ep, config_, exchange_) +
                       LearnerLinks::BytesPerRank(layout, Floats()),
                   [&](int rank, auto arena) { Rank(rank, arena, sums); });
    return std::move(learned_);
  }

 private:
  size_t Floats() const { return static_cast<size_t>(batch_.size() * config_.hidden); }

  std::vector<Batch> BatchesOf(int part) const {
    std::vector<Batch> batches;
    for (int i = 0; i < kMicroBatches; ++i) {
      const Range mine = EvenPart(2, run_.layout.dp, part);
      batches.push_back(testing::Sequences(batch_, 2 * i + mine.begin, 2 * i + mine.end));
    }
    return batches;
  }

  void Rank(int rank, const std::shared_ptr<SharedArena>& arena,
            const std::shared_ptr<SharedArena>& sums) {
    const SymmetricMemory::Options options{.timeout = std::chrono::seconds(60)};
    const auto ranks = LayoutRanks::Create(arena, run_.layout, rank, options);
    ThreadPool pool(1);
    const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), config_, exchange_, pool);
    const LearnerLinks links(*ranks, Floats(), options, sums);
    Model<float> model(config_, Options(), ranks->layer_ranks(exchange.ranks()), pool,
                       ranks->place.Stage(config_), ProductDtype::kFloat32,
                       {.recompute = run_.recompute,
                        .separate_weights = run_.order == schedule::Order::kZeroBubble});
    model.Initialise(9, 0.1);
    Learner learner(model, {.bias_step = 0.001, .order = run_.order}, links.ranks());
    std::vector<Batch> batches = BatchesOf(ranks->place.dp);
    if (rank == run_.broken_rank) batches.back().tokens[0] = 9999;
    const StepSize size = testing::SizeOf(batch_);
    for (int step = 0; step < run_.steps; ++step) {
      const Losses losses = learner.Learn(batches, size);
      for (Parameter<float>* p : learner.Parameters()) {
        for (size_t i = 0; i < p->gradient.size(); ++i) p->value[i] -= 0.1f * p->gradient[i];
      }
      model.ClearGradients();
      const std::map<std::string, double> figures = learner.AfterStep(1.0);
      const std::vector<Losses> each = Gather(losses, *ranks->world);
      const std::lock_guard lock(mutex_);
      if (rank == 0) {
        for (const Losses& one : each) learned_.curve[step] += one.total();
        learned_.figures = figures;
      }
    }
    const std::lock_guard lock(mutex_);
    for (const Parameter<float>* p : learner.Parameters()) {
      testing::Put(*p, p->value, &learned_.values, &known_);
    }
  }

  static std::vector<Losses> Gather(const Losses& mine, Collectives& world) {
    std::vector<Losses> each(static_cast<size_t>(world.size()));
    world.AllGatherV(&mine, each.data(), std::vector<size_t>(each.size(), sizeof mine));
    return each;
  }

  const ModelConfig config_;
  const Variant run_;
  const Batch batch_;
  const ExpertExchangeOptions exchange_{.tokens = batch_.size(), .synchronous = run_.synchronous};
  std::mutex mutex_;
  Learned learned_;
  std::map<std::string, std::vector<bool>> known_;
};

Learned Learn(const ModelConfig& config, const Variant& run) { return Runner(config, run).Learn(); }

// deepseek_v3: a dense first layer, latent attention and selection biases. qwen3_moe: a tied head
// and grouped attention.
class Schedules : public ::testing::TestWithParam<std::string> {
 public:
  const ModelConfig config = Config(GetParam());
};

TEST_P(Schedules, ChangeNoBit) {
  constexpr auto kOverlapped = schedule::Order::kOverlapped;
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.pp = 2}, Layout{.tp = 2, .pp = 2},
                               Layout{.ep = 2, .dp = 2, .pp = 2}}) {
    SCOPED_TRACE(layout.ToString());
    const Learned plain = Learn(config, {.layout = layout});
    EXPECT_LT(plain.curve.back(), plain.curve.front());
    for (const Variant& run :
         {Variant{.layout = layout, .synchronous = true},
          Variant{.layout = layout, .order = kOverlapped},
          Variant{.layout = layout, .order = kOverlapped, .synchronous = true},
          Variant{.layout = layout, .early_sums = true},
          Variant{.layout = layout, .order = kOverlapped, .early_sums = true}}) {
      SCOPED_TRACE(fmt::format("overlapped {}, synchronous {}, early sums {}",
                               run.order == kOverlapped, run.synchronous, run.early_sums));
      const Learned found = Learn(config, run);
      EXPECT_EQ(found.curve, plain.curve);
      EXPECT_EQ(found.values, plain.values);
      EXPECT_EQ(found.figures, plain.figures);
    }
  }
}

TEST_P(Schedules, RecomputationAndSeparateWeightGradientsChangeNoBit) {
  constexpr auto kOverlapped = schedule::Order::kOverlapped;
  constexpr auto kZeroBubble = schedule::Order::kZeroBubble;
  constexpr int kFew = 2;
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.pp = 4}, Layout{.tp = 2, .pp = 2},
                               Layout{.ep = 2, .dp = 2, .pp = 2}}) {
    const Learned plain = Learn(config, {.layout = layout, .steps = kFew});
    for (Variant run : {Variant{.order = kZeroBubble, .early_sums = true},
                        Variant{.order = kZeroBubble}, Variant{.recompute = Recompute::kMoe},
                        Variant{.order = kOverlapped, .recompute = Recompute::kAttention},
                        Variant{.order = kOverlapped, .recompute = Recompute::kLayer}}) {
      run.layout = layout;
      run.steps = kFew;
      SCOPED_TRACE(fmt::format("{}, {}, early sums {}, recompute {}", layout.ToString(),
                               schedule::Name(run.order), run.early_sums,
                               static_cast<int>(run.recompute)));
      const Learned found = Learn(config, run);
      EXPECT_EQ(found.curve, plain.curve);
      EXPECT_EQ(found.values, plain.values);
      EXPECT_EQ(found.figures, plain.figures);
    }
  }
}

TEST_P(Schedules, OfAPipelineLearnWhatOneRankLearns) {
  const Learned one = Learn(config, {});
  for (const auto order : {schedule::Order::kPlain, schedule::Order::kOverlapped}) {
    for (const Layout& layout :
         {Layout{.pp = 2}, Layout{.pp = 4}, Layout{.ep = 2, .dp = 2, .pp = 2},
          Layout{.tp = 2, .ep = 2, .pp = 2}}) {
      SCOPED_TRACE(layout.ToString());
      const Learned found = Learn(config, {.layout = layout, .order = order});
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(found.curve[step], one.curve[step], 1e-5 * one.curve[step]) << step;
      }
      for (const auto& [name, value] : one.figures) {
        EXPECT_NEAR(found.figures.at(name), value, 1e-9) << name;
      }
    }
  }
}

// If one rank fails, all ranks end without deadlock, and the error names the original cause.
TEST_P(Schedules, EndWithTheRankThatFails) {
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.pp = 2}}) {
    for (const bool early_sums : {false, true}) {
      const Variant variant{.layout = layout,
                            .order = schedule::Order::kOverlapped,
                            .early_sums = early_sums,
                            .broken_rank = 1};
      EXPECT_THAT(ErrorOf([&] { Learn(config, variant); }),
                  ::testing::HasSubstr("token 0 of a batch is 9999"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Schedules, ::testing::Values("qwen3_moe", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace switchyard::train
