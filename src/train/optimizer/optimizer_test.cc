#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "comm/device/communicator.h"
#include "core/testing.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/schedule.h"

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;

Parameter<float> Random(const std::string& name, int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Parameter<float> p{.name = name, .shape = {size}};
  p.value.resize(static_cast<size_t>(size));
  p.gradient.resize(p.value.size());
  for (float& x : p.value) x = normal(random);
  for (float& x : p.gradient) x = normal(random);
  return p;
}

// The update formulas of the paper, in double.
TEST(AdamWTest, FollowsThePaper) {
  ThreadPool pool(2);
  Parameter<float> matrix = Random("matrix", 40'000, 1), norm = Random("norm", 7, 2);
  norm.decay = false;
  Parameter<float> fixed{.name = "fixed", .shape = {2}, .value = {1, 2}};
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  AdamW adam({&matrix, &norm, &fixed}, options);
  struct State {
    double value, first = 0, second = 0;
  };
  for (const bool decays : {true, false}) {
    Parameter<float>& p = decays ? matrix : norm;
    const std::vector<float> gradient = p.gradient;
    std::vector<State> expected;
    for (const float x : p.value) expected.push_back({x});
    for (int t = 1; t <= 3; ++t) {
      matrix.gradient.resize(40'000), norm.gradient.resize(7);
      p.gradient = gradient;
      adam.set_steps(t - 1);
      adam.Step(0.01 * t, 0.5, pool);
      EXPECT_EQ(std::ranges::count(p.gradient, 0.0f), std::ssize(p.gradient));
      for (size_t i = 0; i < expected.size(); ++i) {
        State& e = expected[i];
        const double g = 0.5 * gradient[i];
        e.first = 0.9 * e.first + 0.1 * g;
        e.second = 0.95 * e.second + 0.05 * g * g;
        if (decays) e.value *= 1 - 0.01 * t * 0.1;
        e.value -= 0.01 * t * (e.first / (1 - std::pow(0.9, t))) /
                   (std::sqrt(e.second / (1 - std::pow(0.95, t))) + 1e-6);
        ASSERT_NEAR(p.value[i], e.value, 2e-6) << i;
      }
    }
    adam = AdamW({&matrix, &norm, &fixed}, options);
  }
  EXPECT_EQ(fixed.value, (std::vector<float>{1, 2}));
}

TEST(AdamWTest, ThreadsDoNotMatter) {
  Parameter<float> one = Random("p", 100'003, 4), other = one;
  ThreadPool alone(1), three(3);
  AdamW a({&one}, {}), b({&other}, {});
  a.Step(0.1, 1, alone);
  b.Step(0.1, 1, three);
  EXPECT_EQ(one.value, other.value);
}

TEST(ScheduleTest, RisesStaysAndFalls) {
  ScheduleOptions options{.kind = "wsd",
                          .rate = 1.0,
                          .final_part = 0.1,
                          .warmup_steps = 10,
                          .decay_steps = 20,
                          .steps = 100};
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 9), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 79), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 89), 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(options, 99), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 500), 0.1);
  options.kind = "cosine";
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 0.5);
  EXPECT_NEAR(LearningRate(options, 54), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(options, 99), 0.1, 1e-12);
  options.kind = "constant";
  EXPECT_DOUBLE_EQ(LearningRate(options, 99), 1.0);
}

TEST(ScheduleTest, ThePartOfTheRateDoesNotCountTheWarmUp) {
  ScheduleOptions options{.kind = "wsd",
                          .rate = 4.0,
                          .final_part = 0.1,
                          .warmup_steps = 10,
                          .decay_steps = 20,
                          .steps = 100};
  EXPECT_DOUBLE_EQ(RateFraction(options, 0), 1.0);
  EXPECT_DOUBLE_EQ(RateFraction(options, 79), 1.0);
  EXPECT_DOUBLE_EQ(RateFraction(options, 89), 0.55);
  EXPECT_DOUBLE_EQ(RateFraction(options, 99), 0.1);
  options.final_part = 0.0;
  EXPECT_DOUBLE_EQ(RateFraction(options, 99), 0.0);
  options.kind = "constant";
  EXPECT_DOUBLE_EQ(RateFraction(options, 99), 1.0);
}

TEST(ScheduleTest, ErrorsNameTheFlag) {
  const auto error = [](const ScheduleOptions& options) {
    return ErrorOf([&] { CheckSchedule(options); });
  };
  EXPECT_THAT(error({.kind = "linear", .steps = 1}), HasSubstr("--lr-schedule linear"));
  EXPECT_THAT(error({.rate = -1, .steps = 1}), HasSubstr("--learning-rate -1"));
  EXPECT_THAT(error({.steps = 0}), HasSubstr("--steps 0"));
  EXPECT_THAT(error({.warmup_steps = 5, .steps = 4}), HasSubstr("--warmup-steps 5"));
  EXPECT_THAT(error({.final_part = 2, .steps = 1}), HasSubstr("--final-lr-part 2"));
}

TEST(GradientNormTest, NamesWhatIsNotFinite) {
  ThreadPool pool(2);
  Parameter<float> b = Random("b", 50'000, 1), a = Random("a", 3, 2);
  a.gradient = {3, 4, 0};
  b.gradient.assign(50'000, 0);
  b.gradient[49'999] = 12;
  const Catalog catalog({&b, &a}, nullptr);
  EXPECT_DOUBLE_EQ(NormOfGradients(catalog, pool).norm, 13);
  EXPECT_EQ(NormOfGradients(catalog, pool).not_finite, "");
  b.gradient[20'000] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(NormOfGradients(catalog, pool).not_finite, "b");
  a.gradient[1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(NormOfGradients(catalog, pool).not_finite, "a");
  EXPECT_NEAR(ClipScale(13, 1), 1.0 / 13, 1e-6);
  EXPECT_EQ(ClipScale(0.5, 1), 1);
  EXPECT_EQ(ClipScale(1e9, 0), 1);
}

// Four experts and a norm: bitwise equal for any number of ranks.
TEST(GradientNormTest, CountsEveryTensorOnceOverAnyRanks) {
  const auto norm_on = [](int ranks) {
    std::vector<double> norms(static_cast<size_t>(ranks));
    RunRankThreads(ranks, RankComm::BytesPerRank({.tp = ranks, .ep = ranks}) + (1 << 20),
                   [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                     const auto comm = RankComm::Create(arena, {.tp = ranks, .ep = ranks}, rank);
                     Parameter<float> whole = Random("norm", 100, 9);
                     std::vector<Parameter<float>> experts;
                     for (int e = 0; e < 4; ++e) {
                       if (e * ranks / 4 != rank) continue;
                       experts.push_back(Random("expert" + std::to_string(e), 30'000, e));
                     }
                     std::vector<Parameter<float>*> parameters{&whole};
                     for (auto& expert : experts) parameters.push_back(&expert);
                     ThreadPool pool(1);
                     const Catalog catalog(parameters, comm->tp.get());
                     norms[static_cast<size_t>(rank)] = NormOfGradients(catalog, pool).norm;
                   });
    for (const double norm : norms) EXPECT_EQ(norm, norms[0]);
    return norms[0];
  };
  const double alone = norm_on(1);
  EXPECT_GT(alone, 300);
  EXPECT_EQ(norm_on(2), alone);
  EXPECT_EQ(norm_on(4), alone);
}

}  // namespace
}  // namespace switchyard::train
