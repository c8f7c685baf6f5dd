// Experts loaded one by one while a model runs equal those that LoadWeights loads.
#include "model/weights/expert_loader.h"

#include "model/weights/assembled.h"

namespace switchyard {
namespace {

using testing::ChangedCheckpoint;
using testing::Dequantize;
using testing::FixtureDir;
using ::testing::HasSubstr;
using testing::kFixtures;
using testing::QuantizedDir;
using testing::Values;

Values Biases(const kernels::ExpertWeights& w) {
  Values all;
  for (const auto& [bias, n] : {std::pair(w.gate_bias, w.gate.n), std::pair(w.up_bias, w.up.n),
                                std::pair(w.down_bias, w.down.n)})
    if (bias) all.insert(all.end(), bias, bias + n);
  return all;
}

// On each rank, loads every expert alone and compares it with the rank's expert in LoadWeights.
void ExpectTheModels(const std::filesystem::path& dir, const ModelConfig& config,
                     const MeshShape& shape, const LoadOptions& options) {
  for (int rank = 0; rank < shape.tp; ++rank) {
    const Mesh mesh(shape, rank);
    const ModelWeights whole = LoadWeights(dir, config, mesh, options);
    const ExpertLoader loader(dir, config, mesh, options);
    for (size_t layer = 0; layer < whole.layers.size(); ++layer) {
      const auto& experts = whole.layers[layer].moe.experts;
      const Range own = ExpertsOfRank(experts.empty() ? 0 : config.moe->router.num_experts,
                                      mesh.ep(), mesh.ep_rank());
      for (int e = own.begin; e < own.end; ++e) {
        SCOPED_TRACE(fmt::format("rank {} layer {} expert {}", rank, layer, e));
        const kernels::ExpertWeights& want = experts[e - own.begin];
        const OwnedExpert got = loader.Load(static_cast<int64_t>(layer), e);
        for (const auto& [one, other] :
             {std::pair(got.weights.gate, want.gate), std::pair(got.weights.up, want.up),
              std::pair(got.weights.down, want.down)}) {
          ASSERT_EQ(one.format, other.format);
          EXPECT_EQ(one.activation, other.activation);
          EXPECT_EQ(one.input_scale, other.input_scale);
          EXPECT_TRUE(Dequantize(one) == Dequantize(other));
        }
        EXPECT_TRUE(Biases(got.weights) == Biases(want));
        EXPECT_GT(loader.BytesPerExpert(static_cast<int64_t>(layer)), 0u);
      }
    }
  }
}

TEST(ExpertLoader, LoadsWhatTheModelLoads) {
  for (const std::string& name : kFixtures)
    for (const MeshShape& shape : {MeshShape{1, 1}, {4, 2}}) {
      SCOPED_TRACE(fmt::format("{} tp {}", name, shape.tp));
      const auto dir = FixtureDir(name);
      ExpectTheModels(dir, LoadModelConfig(dir), shape, {});
    }
}

// The numbers of its layers follow those of the model.
TEST(ExpertLoader, LoadsExpertsOfAnMtpLayer) {
  const auto dir = FixtureDir("deepseek_v3");
  ExpectTheModels(dir, MtpConfigOf(LoadModelConfig(dir)), {4, 4}, {});
}

TEST(ExpertLoader, DummyWeightsAreThoseOfTheModel) {
  for (const std::string name : {"mixtral", "deepseek_v3_fp8", "gpt_oss"}) {
    SCOPED_TRACE(name);
    ExpectTheModels("/nonexistent", LoadModelConfig(FixtureDir(name)), {4, 2},
                    {.load_format = "dummy", .dummy_seed = 5});
  }
}

TEST(ExpertLoader, ConvertsAsTheModelDoes) {
  for (const char* method : {"fp8", "w8a8_int8", "int4", "nvfp4", "mxfp4", "w4afp8"}) {
    SCOPED_TRACE(method);
    const auto dir = FixtureDir("qwen2_moe");
    ExpectTheModels(dir, LoadModelConfig(dir, {}, {.method = method}), {4, 2}, {});
  }
  for (const char* name : {"ct_fp8_channel", "ct_int4_zeros", "modelopt_nvfp4", "gptq", "awq",
                           "gptq_act_order", "w4afp8"}) {
    SCOPED_TRACE(name);
    ExpectTheModels(QuantizedDir(name), LoadModelConfig(QuantizedDir(name)), {2, 2}, {});
  }
}

TEST(ExpertLoader, ConvertsIsFalseForWeightsUsedAsStored) {
  const auto converts = [](const std::filesystem::path& dir, const std::string& method,
                           const LoadOptions& options = {}) {
    const ModelConfig config = LoadModelConfig(dir, {}, {.method = method});
    return ExpertLoader(dir, config, Mesh({4, 2}, 3), options).Converts();
  };
  for (const char* name : {"mixtral", "deepseek_v3_fp8", "gpt_oss"})
    EXPECT_FALSE(converts(FixtureDir(name), "")) << name;
  EXPECT_TRUE(converts(FixtureDir("qwen2_moe"), "int4"));
  EXPECT_TRUE(converts(FixtureDir("mixtral"), "", {.load_format = "dummy"}));
}

TEST(ExpertLoader, MemoryGoesWithTheExpert) {
  const auto dir = FixtureDir("gpt_oss");  // its experts have biases
  const LoadOptions dummy{.load_format = "dummy"};
  const ExpertLoader loader(dir, LoadModelConfig(dir), Mesh(), dummy);
  std::weak_ptr<const void> gate, down, biases;
  {
    const OwnedExpert expert = loader.Load(1, 2);
    gate = expert.weights.gate.owner;
    down = expert.weights.down.owner;
    biases = expert.owner;
    const OwnedExpert other = loader.Load(1, 3);
    EXPECT_NE(other.weights.gate.owner, expert.weights.gate.owner);
    EXPECT_FALSE(gate.expired() || down.expired() || biases.expired());
  }
  EXPECT_TRUE(gate.expired());
  EXPECT_TRUE(down.expired());
  EXPECT_TRUE(biases.expired());
}

TEST(ExpertLoader, ErrorsNameTheDefectOfTheCheckpoint) {
  ChangedCheckpoint c("qwen3_moe");
  c.tensors.erase("model.layers.1.mlp.experts.2.up_proj.weight");
  const ExpertLoader loader(c.Write(), c.config, Mesh(), {});
  EXPECT_NO_THROW(loader.Load(1, 3));
  EXPECT_THAT(testing::MessageOf([&] { loader.Load(1, 2); }),
              HasSubstr("model.layers.1.mlp.experts.2.up_proj.weight"));
}

}  // namespace
}  // namespace switchyard
