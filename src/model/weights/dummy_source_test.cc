#include <cmath>

#include "model/weights/assembled.h"

namespace switchyard {
namespace {

using testing::Assemble;
using testing::ExpectSame;
using testing::FixtureDir;
using testing::kFixtures;
using testing::Roles;
using testing::Values;

TEST(DummyWeights, DoNotDependOnTheMesh) {
  const LoadOptions dummy{.load_format = "dummy", .dummy_seed = 3};
  for (const std::string& name : kFixtures) {
    const ModelConfig config = LoadModelConfig(FixtureDir(name));
    const Roles whole = Assemble("/nonexistent", config, {1, 1}, dummy);
    for (const MeshShape& shape : {MeshShape{2, 1}, {2, 2}, {4, 2}}) {
      SCOPED_TRACE(name + " tp " + std::to_string(shape.tp) + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble("/nonexistent", config, shape, dummy), whole);
    }
  }
}

TEST(DummyWeights, DifferBySeedNameAndRowAndHaveSaneSizes) {
  for (const std::string name : {"mixtral", "qwen3_moe", "deepseek_v3_fp8", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = LoadModelConfig(FixtureDir(name));
    const Roles a = Assemble("", config, {1, 1}, {.load_format = "dummy", .dummy_seed = 1});
    const Roles b = Assemble("", config, {1, 1}, {.load_format = "dummy", .dummy_seed = 2});
    const std::string role = "1.experts.2.gate";
    EXPECT_FALSE(a.at(role) == b.at(role));
    EXPECT_FALSE(a.at(role) == a.at("1.experts.2.up"));
    EXPECT_FALSE(a.at(role) == a.at("1.experts.3.gate"));
    const Values& w = a.at(role);
    EXPECT_FALSE(std::equal(w.begin(), w.begin() + 64, w.begin() + config.hidden));
    double sum = 0, squares = 0;
    for (float x : w) {
      ASSERT_TRUE(std::isfinite(x));
      sum += x;
      squares += double{x} * x;
    }
    const double n = static_cast<double>(w.size()), want = 1.0 / std::sqrt(config.hidden);
    EXPECT_NEAR(sum / n, 0.0, 0.1 * want);
    EXPECT_GT(std::sqrt(squares / n), 0.6 * want);
    EXPECT_LT(std::sqrt(squares / n), 1.6 * want);
    EXPECT_EQ(a.at("final_norm")[0], 1.0f);
  }
}

TEST(DummyWeights, KeepTheCheckpointsFormats) {
  const LoadOptions dummy{.load_format = "dummy"};
  const auto load = [&](const std::string& name) {
    return LoadWeights("", LoadModelConfig(FixtureDir(name)), Mesh(), dummy);
  };
  EXPECT_EQ(load("mixtral").layers[0].moe.experts[0].gate.format, WeightFormat::kF32);
  EXPECT_EQ(load("olmoe").layers[0].moe.experts[0].gate.format, WeightFormat::kBF16);
  const ModelWeights fp8 = load("deepseek_v3_fp8");
  EXPECT_EQ(fp8.layers[1].moe.experts[0].down.format, WeightFormat::kFp8Block);
  EXPECT_EQ(fp8.layers[1].moe.router.w.format, WeightFormat::kBF16);
  EXPECT_EQ(fp8.embedding.format, WeightFormat::kBF16);
  const ModelWeights oss = load("gpt_oss");
  EXPECT_EQ(oss.layers[0].moe.experts[0].up.format, WeightFormat::kMxfp4);
  EXPECT_EQ(oss.layers[0].grouped.q.w.format, WeightFormat::kBF16);
}

}  // namespace
}  // namespace switchyard
