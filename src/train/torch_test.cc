// Compares the gradients of the fixtures with those of PyTorch's autograd
// (tests/data/train/make_gradients.py).
#include <filesystem>

#include "model/weights/safetensors.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::vector<T> Values(const Checkpoint& file, const std::string& name) {
  const StoredTensor* t = file.Find(name);
  if (t == nullptr) {
    ADD_FAILURE() << name << " is not in the reference";
    return {};
  }
  EXPECT_EQ(t->dtype, DTypeOf<T>()) << name;
  std::vector<T> values(t->num_bytes / sizeof(T));
  std::copy_n(t->data, t->num_bytes, reinterpret_cast<uint8_t*>(values.data()));
  return values;
}

// Returns the norm of a gradient and at most 250 of its entries, in the same format as the
// reference file.
template <typename T>
std::vector<double> Sample(const std::vector<T>& gradient) {
  double squares = 0.0;
  for (const T g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
  std::vector<double> sample = {std::sqrt(squares)};
  const size_t stride = (gradient.size() + 249) / 250;
  for (size_t i = 0; i < gradient.size(); i += stride) sample.push_back(gradient[i]);
  return sample;
}

class Torch : public ::testing::TestWithParam<std::string> {
 public:
  template <typename T>
  void Compare(double bound) {
    const fs::path data = SWITCHYARD_TEST_DATA;
    const fs::path fixture = data / "fixtures" / GetParam();
    const Checkpoint reference(data / "train" / GetParam());
    const ModelConfig config = LoadModelConfig(fixture);
    LossOptions options{.balance = {.batch = 0.02, .sequence = 0.03, .z = 0.001},
                        .mtp_weight = 0.3};
    if (GetParam() == "deepseek_v3") options.mtp_layers = 1;
    ThreadPool pool(2);
    Model<T> model(config, options, {}, pool);
    model.Load(fixture);
    const Batch batch{.tokens = Values<int32_t>(reference, "batch.tokens"),
                      .targets = Values<int32_t>(reference, "batch.targets"),
                      .begins = Values<int32_t>(reference, "batch.begins")};
    Pass<T> pass;
    const Losses losses = model.Run(batch, testing::SizeOf(batch), true, &pass);
    const std::vector<float> wanted = Values<float>(reference, "losses");
    EXPECT_NEAR(losses.main, wanted[0], 1e-5);
    EXPECT_NEAR(losses.mtp, wanted[1], 1e-5);
    EXPECT_NEAR(losses.balance, wanted[2], 1e-5);

    double worst = 0.0;
    std::string worst_name;
    size_t compared = 0;
    for (const Parameter<T>* p : model.parameters()) {
      if (p->name.ends_with("e_score_correction_bias")) continue;
      const double error =
          testing::RelativeError(Sample(p->gradient), Values<float>(reference, p->name));
      EXPECT_LT(error, bound) << p->name;
      if (error > worst) {
        worst = error;
        worst_name = p->name;
      }
      ++compared;
    }
    EXPECT_EQ(compared + 4, reference.tensors().size());
    RecordProperty("worst", fmt::format("{:.1e} {}", worst, worst_name));
    fmt::print("{} parameters, the largest relative error is {:.1e}, of {}\n", compared, worst,
               worst_name);
  }
};

TEST_P(Torch, GradientsOfAFixtureAgreeInFloat32) { Compare<float>(1e-5); }
TEST_P(Torch, GradientsOfAFixtureAgreeInFloat64) { Compare<double>(1e-6); }

INSTANTIATE_TEST_SUITE_P(Fixtures, Torch, ::testing::Values("deepseek_v3", "qwen3_moe", "mixtral"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace switchyard::train
