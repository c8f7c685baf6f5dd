// Training with bfloat16 products compared with float32.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/temporary_directory.h"
#include "train/run/learner.h"
#include "train/run/trainer.h"
#include "train/test_bigram.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

class Bf16Gradients : public ::testing::TestWithParam<std::string> {};

// Rounded operands have a relative error of at most 1/256. After a few layers, this gives gradients
// with an error of a few percent. The expert choices are fixed to those of float32.
TEST_P(Bf16Gradients, AreNearThoseOfFloat32AndIndependentOfThreads) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig(GetParam()));
  LossOptions options{.balance = {.batch = 0.1}};
  if (GetParam() == "deepseek_v3") options.mtp_layers = 1;
  const Batch batch = testing::RandomBatch({20, 1, 30}, config.vocab_size, 4);
  const StepSize size = testing::SizeOf(batch);
  Pass<float> pass;
  double loss = 0.0;
  const auto gradients_of = [&](ProductDtype products, int threads) {
    ThreadPool pool(threads);
    Model<float> model(config, options, {}, pool, {}, products);
    model.Initialise(7, 0.2);
    loss = model.Run(batch, size, true, &pass).total();
    return testing::Gradients(model);
  };
  const auto exact = gradients_of(ProductDtype::kFloat32, 1);
  const double exact_loss = loss;
  for (LayerState<float>& layer : pass.layers) layer.moe.router.keep_choice = true;
  const auto rounded = gradients_of(ProductDtype::kBFloat16, 1);
  const double rounded_loss = loss;
  EXPECT_NEAR(loss, exact_loss, 0.01 * exact_loss);
  EXPECT_NE(loss, exact_loss) << "nothing was rounded";
  for (const auto& [name, gradient] : exact) {
    if (name.ends_with("e_score_correction_bias")) continue;
    EXPECT_LT(testing::RelativeError(rounded.at(name), gradient), 0.1) << name;
  }
  EXPECT_EQ(gradients_of(ProductDtype::kBFloat16, 3), rounded) << "threads change bits";
  EXPECT_EQ(loss, rounded_loss);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Bf16Gradients,
                         ::testing::Values("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

// The mean main loss of the last ten of 60 steps.
double LossOfARun(ProductDtype products) {
  const TemporaryDirectory directory;
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  const LossOptions losses{.balance = {.sequence = 0.01}, .mtp_layers = 1};
  TrainerOptions options{
      .rows_per_step = 8, .rows_per_pass = 2, .output = directory.path() / "out"};
  options.schedule = {.rate = 0.02, .warmup_steps = 3, .steps = 60};
  ThreadPool pool(1);
  Model<float> model(config, losses, {}, pool, {}, products);
  model.Initialise(1, 0.1);
  Learner learner(model, {.bias_step = 0.01, .bias_step_falls = false}, nullptr);
  Corpus corpus(CountingDocuments(8, 60), {.length = 8, .seed = 5});
  Trainer trainer(learner, corpus, options, nullptr, pool);
  double sum = 0.0;
  trainer.Run(
      [&](const StepReport& report) {
        if (report.step > 50) sum += report.losses.main;
      },
      [] { return false; }, {});
  return sum / 10;
}

TEST(Bf16Training, ReachesTheLossOfFloat32) {
  const double wanted = LossOfARun(ProductDtype::kFloat32);
  const double found = LossOfARun(ProductDtype::kBFloat16);
  EXPECT_NEAR(found, wanted, 0.02 * wanted);
  EXPECT_NE(found, wanted) << "nothing was rounded";
}

}  // namespace
}  // namespace switchyard::train
