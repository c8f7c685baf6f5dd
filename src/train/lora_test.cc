// LoRA: the gradients of adapters, compared with those of a model that has the merged weights.
#include "train/layers/lora.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "train/test_training.h"

namespace switchyard::train {
namespace {

using ::testing::ElementsAre;
using Gradients = std::map<std::string, std::vector<double>>;

constexpr double kBound = 1e-9;  // relative; rounding errors of float64 are far smaller

// A product of dense matrices, multiplied by `scale`: a [n, m] or its transpose, b [m, k] or its
// transpose.
std::vector<double> Multiplied(const std::vector<double>& a, bool a_transposed,
                               const std::vector<double>& b, bool b_transposed, int64_t n,
                               int64_t m, int64_t k, double scale) {
  std::vector<double> out(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      for (int64_t q = 0; q < m; ++q)
        out[i * k + j] += scale * a[a_transposed ? q * n + i : i * m + q] *
                          b[b_transposed ? j * m + q : q * k + j];
  return out;
}

class LoraTest : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelConfig config_ = ParseModelConfig(testing::SmallConfig(GetParam()));
  const LossOptions options_{.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
  const Batch batch_ = testing::RandomBatch({9, 4, 1, 30}, config_.vocab_size, 6);
};

void Randomise(Model<double>& model) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> near(-0.3, 0.3);
  for (Parameter<double>* p : model.parameters()) {
    if (!IsAdapter(p->name)) continue;
    for (double& v : p->value) v = near(random);
  }
}

TEST_P(LoraTest, GradientsFollowFromThoseOfTheMergedWeights) {
  const LoraOptions lora{.rank = 3, .alpha = 5, .targets = LoraTargets(config_)};
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Model<double> whole(config_, options_, {}, pool);
    whole.Initialise(7, 0.4);
    std::map<std::string, Parameter<double>*> merged;
    for (Parameter<double>* p : whole.parameters()) merged[p->name] = p;
    Gradients first;
    for (const BackwardOptions& backward :
         {BackwardOptions{}, BackwardOptions{.recompute = Recompute::kLayer},
          BackwardOptions{.separate_weights = true}}) {
      Model<double> model(config_, options_, {}, pool, {}, ProductDtype::kFloat32, backward, lora);
      model.Initialise(7, 0.4);
      Randomise(model);
      for (const Parameter<double>* p : model.parameters())
        if (!IsAdapter(p->name)) merged.at(p->name)->value = MergedValue(*p);
      whole.ClearGradients();
      Pass<double> pass, whole_pass;
      const double loss = model.Run(batch_, testing::SizeOf(batch_), true, &pass).total();
      const double wanted = whole.Run(batch_, testing::SizeOf(batch_), true, &whole_pass).total();
      EXPECT_NEAR(loss, wanted, 1e-11 * wanted);
      for (const Parameter<double>* p : model.parameters()) {
        if (!IsAdapter(p->name)) {
          EXPECT_TRUE(p->gradient.empty()) << p->name;
        }
        if (p->adapter.a == nullptr) continue;
        const auto& [a, b, scale] = p->adapter;
        const std::vector<double>& gradient = merged.at(p->name)->gradient;
        const int64_t n = p->shape[0], k = p->shape[1];
        EXPECT_LT(testing::RelativeError(
                      a->gradient, Multiplied(b->value, true, gradient, false, 3, n, k, scale)),
                  kBound)
            << a->name;
        EXPECT_LT(testing::RelativeError(
                      b->gradient, Multiplied(gradient, false, a->value, true, n, k, 3, scale)),
                  kBound)
            << b->name;
      }
      const Gradients found = testing::Gradients(model);
      if (first.empty()) first = found;
      EXPECT_EQ(found, first);
    }
  }
}

// At first, adapters change nothing, and B alone has a gradient.
TEST_P(LoraTest, AdaptersBeginWithoutEffect) {
  const LoraOptions lora{.rank = 2, .alpha = 4, .targets = {LoraTargets(config_).front()}};
  ThreadPool pool(1);
  Model<double> model(config_, options_, {}, pool, {}, ProductDtype::kFloat32, {}, lora);
  Model<double> whole(config_, options_, {}, pool);
  model.Initialise(7, 0.4);
  whole.Initialise(7, 0.4);
  Pass<double> pass, whole_pass;
  const double wanted = whole.Run(batch_, testing::SizeOf(batch_), true, &whole_pass).total();
  EXPECT_NEAR(model.Run(batch_, testing::SizeOf(batch_), true, &pass).total(), wanted,
              1e-12 * wanted);
  int adapters = 0;
  for (const Parameter<double>* p : model.parameters()) {
    if (p->adapter.a == nullptr) continue;
    ++adapters;
    const auto zero = [](double v) { return v == 0; };
    EXPECT_TRUE(std::ranges::all_of(p->adapter.a->gradient, zero)) << p->name;
    EXPECT_FALSE(std::ranges::all_of(p->adapter.b->gradient, zero)) << p->name;
  }
  EXPECT_EQ(adapters, 3);  // one in each layer, and one in the MTP module
}

INSTANTIATE_TEST_SUITE_P(Kinds, LoraTest,
                         ::testing::Values("mixtral", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3"),
                         [](const auto& info) { return info.param; });

TEST(LoraTargets, AreTheLinearLayersOfTheModel) {
  const auto targets = [](const char* kind) {
    return LoraTargets(ParseModelConfig(testing::SmallConfig(kind)));
  };
  EXPECT_THAT(targets("mixtral"),
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "w1", "w3", "w2"));
  EXPECT_THAT(targets("deepseek_v3"),
              ElementsAre("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                          "gate_proj", "up_proj", "down_proj"));
}

}  // namespace
}  // namespace switchyard::train
