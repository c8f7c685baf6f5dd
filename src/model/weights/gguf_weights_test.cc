#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/testing.h"
#include "model/gguf/gguf_config.h"
#include "model/rank_memory.h"
#include "model/rope.h"
#include "model/weights/assembled.h"
#include "model/weights/expert_loader.h"
#include "model/weights/stored_weights.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::Assemble;
using testing::FixtureDir;
using ::testing::HasSubstr;
using testing::ReadBytes;
using testing::Roles;
using testing::TempDir;
using testing::Values;
using testing::WriteBytes;

fs::path GgufFile(const std::string& name) {
  return fs::path(SWITCHYARD_TEST_DATA) / "gguf" / (name + ".gguf");
}

struct Case {
  const char *file, *fixture;
  // Largest difference of a weight from the fixture's, as a fraction of the largest magnitude of
  // its role: half a step of the type's codes, and bfloat16's rounding of expanded blocks.
  double bound;
  int64_t layers = 0;  // number of layers of the file; 0: as in the fixture
};
constexpr Case kCases[] = {
    {"llama_bf16", "llama", 0},
    {"olmoe_q8_0", "olmoe", 0.5 / 127 + 0x1p-8},
    {"mixtral_q4_0", "mixtral", 1.0 / 8},  // the largest code is 7 on one side
    {"gpt_oss_mxfp4", "gpt_oss", 0.5 / 127 + 0x1p-8, 3},
};

class GgufWeights : public ::testing::TestWithParam<Case> {};

TEST_P(GgufWeights, EqualTheFixtureWithinTheBoundOfTheType) {
  const Case& c = GetParam();
  ModelConfig fixture = LoadModelConfig(FixtureDir(c.fixture));
  if (c.layers != 0) fixture.layers.resize(static_cast<size_t>(c.layers));
  const ModelConfig config = LoadModelConfig(GgufFile(c.file));
  const Roles want = Assemble(FixtureDir(c.fixture), fixture, {1, 1});
  const Roles got = Assemble(GgufFile(c.file), config, {1, 1});
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [role, values] : want) {
    ASSERT_TRUE(got.contains(role)) << role;
    ASSERT_EQ(got.at(role).size(), values.size()) << role;
    float largest = 0;
    for (const float x : values) largest = std::max(largest, std::fabs(x));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(got.at(role)[i], values[i], c.bound * largest) << role << " " << i;
  }
}

TEST_P(GgufWeights, DoNotDependOnTheRanks) {
  const Case& c = GetParam();
  const ModelConfig config = LoadModelConfig(GgufFile(c.file));
  const Roles whole = Assemble(GgufFile(c.file), config, {1, 1});
  const int ep = config.has_moe() ? 2 : 1;
  testing::ExpectSame(Assemble(GgufFile(c.file), config, {.tp = 2, .ep = 1}), whole);
  testing::ExpectSame(Assemble(GgufFile(c.file), config, {.tp = 2, .ep = ep}), whole);
}

TEST_P(GgufWeights, HaveTheFixturesConfiguration) {
  const Case& c = GetParam();
  const ModelConfig a = LoadModelConfig(FixtureDir(c.fixture)),
                    b = LoadModelConfig(GgufFile(c.file));
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.intermediate, b.intermediate);
  EXPECT_EQ(a.max_position, b.max_position);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.tie_embeddings, b.tie_embeddings);
  EXPECT_EQ(a.attention.heads, b.attention.heads);
  EXPECT_EQ(a.attention.kv_heads, b.attention.kv_heads);
  EXPECT_EQ(a.attention.head_dim, b.attention.head_dim);
  EXPECT_EQ(a.attention.qk_norm, b.attention.qk_norm);
  EXPECT_EQ(a.attention.qkv_bias, b.attention.qkv_bias);
  EXPECT_EQ(a.attention.output_bias, b.attention.output_bias);
  EXPECT_EQ(a.attention.scale, b.attention.scale);
  EXPECT_EQ(a.eos_token_ids[0], b.eos_token_ids[0]);
  ASSERT_EQ(a.has_moe(), b.has_moe());
  if (a.has_moe()) {
    EXPECT_EQ(a.moe->router.num_experts, b.moe->router.num_experts);
    EXPECT_EQ(a.moe->router.top_k, b.moe->router.top_k);
    EXPECT_EQ(a.moe->router.renormalize, b.moe->router.renormalize);
    EXPECT_EQ(a.moe->intermediate, b.moe->intermediate);
  }
  for (int64_t i = 0; i < b.num_layers(); ++i) EXPECT_EQ(a.layers[i].window, b.layers[i].window);
  const Tensor angles = BuildCosSin(a.rope, 256), stored = BuildCosSin(b.rope, 256);
  ASSERT_EQ(angles.num_bytes(), stored.num_bytes());
  for (size_t i = 0; i < angles.span<float>().size(); ++i)
    EXPECT_NEAR(angles.span<float>()[i], stored.span<float>()[i], 3e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(Files, GgufWeights, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.file); });

TEST(GgufFormats, KeepBlocksThatAViewHoldsExactly) {
  const auto expert = [](const char* file) {
    const ModelConfig config = LoadModelConfig(GgufFile(file));
    ModelWeights weights = LoadWeights(GgufFile(file), config, Mesh(), {});
    return std::pair{weights.layers[0].moe.experts[0].gate, weights.layers[0].grouped.q.w};
  };
  EXPECT_EQ(expert("gpt_oss_mxfp4").first.format, WeightFormat::kMxfp4);
  EXPECT_EQ(expert("gpt_oss_mxfp4").second.format, WeightFormat::kBF16);
  EXPECT_EQ(expert("mixtral_q4_0").first.format, WeightFormat::kInt4Group);
  EXPECT_EQ(expert("mixtral_q4_0").first.group_size, 32);
  EXPECT_EQ(expert("mixtral_q4_0").second.format, WeightFormat::kInt4Group);
  EXPECT_EQ(expert("olmoe_q8_0").first.format, WeightFormat::kBF16);
  EXPECT_EQ(expert("k_types").first.format, WeightFormat::kBF16);
}

// The configuration with activation rows rounded to int8, which is the default on CPUs with 4-bit
// multiply instructions.
ModelConfig WithInt8Rows(const char* file) {
  ModelConfig config = LoadModelConfig(GgufFile(file));
  config.quantization.int8_group_rows = true;
  return config;
}

TEST(GgufFormats, StayPackedForInt8Rows) {
  const auto load = [](const char* file) {
    return LoadWeights(GgufFile(file), WithInt8Rows(file), Mesh(), {});
  };
  const ModelWeights q8_0 = load("olmoe_q8_0"), q4_0 = load("mixtral_q4_0"),
                     mxfp4 = load("gpt_oss_mxfp4"), k_types = load("k_types");
  EXPECT_EQ(q8_0.layers[0].moe.experts[0].gate.format, WeightFormat::kQ8_0Panels);
  EXPECT_EQ(q8_0.layers[0].grouped.q.w.format, WeightFormat::kQ8_0Panels);
  EXPECT_EQ(q8_0.head.format, WeightFormat::kQ8_0Panels);
  EXPECT_EQ(q8_0.embedding.format, WeightFormat::kBF16);
  EXPECT_EQ(q8_0.layers[0].moe.router.w.format, WeightFormat::kF32);
  EXPECT_EQ(q4_0.layers[0].moe.experts[0].down.format, WeightFormat::kQ4_0Panels);
  EXPECT_EQ(mxfp4.layers[0].moe.experts[0].gate.format, WeightFormat::kMxfp4Panels);
  EXPECT_EQ(mxfp4.layers[0].grouped.o.w.format, WeightFormat::kQ8_0Panels);
  const GroupedAttentionWeights& attention = k_types.layers[0].grouped;
  EXPECT_EQ(attention.q.w.format, WeightFormat::kIQ4XSPanels);
  EXPECT_EQ(attention.k.w.format, WeightFormat::kQ6KPanels);
  EXPECT_EQ(attention.v.w.format, WeightFormat::kQ4KPanels);
  EXPECT_EQ(attention.o.w.format, WeightFormat::kQ8_0Panels);
  // Gate and up have different types.
  EXPECT_EQ(k_types.layers[0].moe.experts[0].gate.format, WeightFormat::kBF16);
  EXPECT_EQ(k_types.layers[0].moe.experts[0].up.format, WeightFormat::kBF16);
  EXPECT_EQ(k_types.layers[0].moe.experts[0].down.format, WeightFormat::kQ6KPanels);
  EXPECT_EQ(k_types.layers[0].moe.experts[0].down.activation, ActivationFormat::kInt8Group);
}

TEST(GgufFormats, PanelsHoldTheNumbersOfTheFile) {
  for (const char* file : {"olmoe_q8_0", "mixtral_q4_0", "gpt_oss_mxfp4", "k_types"}) {
    SCOPED_TRACE(file);
    const Roles expanded = Assemble(GgufFile(file), LoadModelConfig(GgufFile(file)), {1, 1});
    const ModelConfig config = WithInt8Rows(file);
    for (const MeshShape& shape : {MeshShape{1, 1}, {2, 1}, {2, 2}}) {
      const Roles panels = Assemble(GgufFile(file), config, shape);
      for (const auto& [role, values] : expanded) {
        const Values& got = panels.at(role);
        ASSERT_EQ(got.size(), values.size()) << role;
        // Expanded weights are rounded to bfloat16.
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(got[i], values[i], std::fabs(values[i]) * 0x1p-8) << role << " " << i;
      }
    }
  }
}

// The plan counts the bytes that are loaded; routers and norms are float32 in GGUF files.
TEST(GgufFormats, AreCountedByThePlan) {
  for (const Case& c : kCases) {
    const ModelConfig config = LoadModelConfig(GgufFile(c.file));
    const auto loaded =
        static_cast<double>(LoadWeights(GgufFile(c.file), config, Mesh(), {}).bytes_mapped);
    EXPECT_NEAR(static_cast<double>(WeightBytesPerRank(config, Mesh())) / loaded, 1.0, 0.02)
        << c.file;
  }
}

// Types may differ between layers, so one layer does not stand for all.
TEST(GgufFormats, AreCountedLayerByLayer) {
  for (const char* file : {"olmoe_q8_0", "mixtral_q4_0", "k_types"}) {
    ModelConfig config = WithInt8Rows(file);
    const auto counted = [&] { return WeightsOfRank(config, {1, 1}).total(); };
    const auto all = [&] { return static_cast<double>(WeightBytesPerRank(config, Mesh())); };
    EXPECT_NEAR(counted() / all(), 1.0, 1e-3) << file;
    std::erase_if(config.quantization.stored,
                  [](const auto& linear) { return linear.first.starts_with("model.layers.0."); });
    EXPECT_NEAR(counted() / all(), 1.0, 1e-3) << file << " with a plain first layer";
  }
}

TEST(GgufFormats, ExpertsAreLoadedOneByOne) {
  const ModelConfig config = LoadModelConfig(GgufFile("mixtral_q4_0"));
  const ModelWeights weights = LoadWeights(GgufFile("mixtral_q4_0"), config, Mesh(), {});
  const ExpertLoader loader(GgufFile("mixtral_q4_0"), config, Mesh(), {});
  EXPECT_TRUE(loader.Converts());
  const OwnedExpert expert = loader.Load(1, 5);
  EXPECT_EQ(testing::Dequantize(expert.weights.down),
            testing::Dequantize(weights.layers[1].moe.experts[5].down));
}

TEST(GgufErrors, NameTheFileAndTensor) {
  const TempDir dir;
  const fs::path file = dir.path() / "model.gguf";
  const std::string whole = ReadBytes(GgufFile("olmoe_q8_0"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    EXPECT_EQ(from.size(), to.size());
    text.replace(at, to.size(), to);
    WriteBytes(file, text);
    try {
      CheckCheckpoint(file, LoadModelConfig(file));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(changed("olmoe", "olmox"),
              HasSubstr("general.architecture is \"olmox\"; want deepseek2"));
  EXPECT_THAT(changed("blk.1.attn_q.weight", "blk.1.attn_x.weight"),
              HasSubstr("1 tensor that the metadata implies is missing: blk.1.attn_q.weight"));
  EXPECT_THAT(changed("olmoe.embedding_length", "olmoe.embedding_lengtx"),
              HasSubstr("olmoe.embedding_length is missing"));
  EXPECT_THAT(changed("olmoe.expert_used_count", "olmoe.expert_usex_count"),
              HasSubstr("olmoe.expert_used_count is missing"));
  EXPECT_THAT(changed("general.architecture", "general.architecturx"),
              HasSubstr("general.architecture is missing"));
  WriteBytes(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(ErrorOf([&] { LoadModelConfig(file); }), HasSubstr("it is truncated"));
}

TEST(GgufErrors, NameFlagsThatDoNotApply) {
  EXPECT_THAT(ErrorOf([] { LoadModelConfig(GgufFile("olmoe_q8_0"), {}, {.method = "int4"}); }),
              HasSubstr("--quantization int4: "));
  EXPECT_THAT(ErrorOf([] {
                LoadModelConfig(GgufFile("olmoe_q8_0"), {},
                                {.rules = R"({"rules": [{"targets": ["a"], "method": "int8"}]})"});
              }),
              HasSubstr("--quantization-config: "));
  EXPECT_THAT(ErrorOf([] { Checkpoint(GgufFile("olmoe_q8_0")); }),
              HasSubstr("is a GGUF model; this command needs a safetensors checkpoint"));
  EXPECT_EQ(LoadModelConfig(GgufFile("olmoe_q8_0"), R"({"clip_qkv": 8})").attention.clip_qkv, 8.0f);
}

}  // namespace
}  // namespace switchyard
