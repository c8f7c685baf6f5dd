#include "model/weights.h"

#include <cmath>

#include "model/weights/assembled.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::Assemble;
using testing::Dequantize;
using testing::ExpectSame;
using testing::FamilyDirs;
using testing::FixtureDir;
using testing::FloatsOf;
using ::testing::HasSubstr;
using testing::kFixtures;
using testing::RawTensors;
using testing::ReadBytes;
using testing::ReadSafetensors;
using testing::Roles;
using testing::Values;

TEST(LoadWeights, OneRankHoldsTheFilesTensors) {
  const struct {
    const char *fixture, *role, *tensor;
  } cases[] = {
      {"mixtral", "0.experts.3.gate", "model.layers.0.block_sparse_moe.experts.3.w1.weight"},
      {"mixtral", "1.experts.7.up", "model.layers.1.block_sparse_moe.experts.7.w3.weight"},
      {"mixtral", "1.experts.0.down", "model.layers.1.block_sparse_moe.experts.0.w2.weight"},
      {"mixtral", "0.router", "model.layers.0.block_sparse_moe.gate.weight"},
      {"qwen2_moe", "0.shared.up", "model.layers.0.mlp.shared_expert.up_proj.weight"},
      {"qwen2_moe", "2.shared_gate", "model.layers.2.mlp.shared_expert_gate.weight"},
      {"qwen2_moe", "1.dense.down", "model.layers.1.mlp.down_proj.weight"},
      {"qwen2_moe", "1.k.bias", "model.layers.1.self_attn.k_proj.bias"},
      {"qwen3_moe", "2.q_norm", "model.layers.2.self_attn.q_norm.weight"},
      {"qwen3_moe", "head", "lm_head.weight"},
      {"olmoe", "1.k_norm", "model.layers.1.self_attn.k_norm.weight"},
      {"deepseek_v2", "1.q", "model.layers.1.self_attn.q_proj.weight"},
      {"deepseek_v2", "2.kv_b", "model.layers.2.self_attn.kv_b_proj.weight"},
      {"deepseek_v3", "0.q_a", "model.layers.0.self_attn.q_a_proj.weight"},
      {"deepseek_v3", "1.correction", "model.layers.1.mlp.gate.e_score_correction_bias"},
      {"deepseek_v3", "2.shared.gate", "model.layers.2.mlp.shared_experts.gate_proj.weight"},
      {"gpt_oss", "3.sinks", "model.layers.3.self_attn.sinks"},
      {"gpt_oss", "0.router_bias", "model.layers.0.mlp.router.bias"},
      {"gpt_oss", "0.o.bias", "model.layers.0.self_attn.o_proj.bias"},
      {"glm4_moe", "0.post_norm", "model.layers.0.post_attention_layernorm.weight"},
      {"llama", "head", "model.embed_tokens.weight"},
      {"qwen3", "final_norm", "model.norm.weight"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.tensor);
    const auto dir = FixtureDir(c.fixture);
    const Roles model = Assemble(dir, LoadModelConfig(dir), {1, 1});
    ASSERT_TRUE(model.contains(c.role));
    EXPECT_TRUE(model.at(c.role) == FloatsOf(ReadSafetensors(dir).at(c.tensor)));
  }
}

TEST(LoadWeights, Fp8IsBytesTimesTheirBlocksScale) {
  const auto dir = FixtureDir("deepseek_v3_fp8");
  const Roles model = Assemble(dir, LoadModelConfig(dir), {1, 1});
  const RawTensors raw = ReadSafetensors(dir);
  const std::string name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
  Values want = FloatsOf(raw.at(name));  // [160, 256]
  const Values scales = FloatsOf(raw.at(name + "_scale_inv"));
  for (int64_t i = 0; i < 160; ++i) {
    for (int64_t j = 0; j < 256; ++j) want[i * 256 + j] *= scales[i / 128 * 2 + j / 128];
  }
  EXPECT_TRUE(model.at("0.kv_a") == want);
}

TEST(LoadWeights, Mxfp4GateAndUpRowsAlternate) {
  const auto dir = FixtureDir("gpt_oss");
  const Roles model = Assemble(dir, LoadModelConfig(dir), {1, 1});
  const RawTensors raw = ReadSafetensors(dir);
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string &blocks = raw.at(name + "_blocks").bytes,
                    &scales = raw.at(name + "_scales").bytes;
  const float codes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto element = [&](int64_t expert, int64_t row, int64_t col) {  // of [8, 128, 64]
    const int64_t at = (expert * 128 + row) * 64 + col;
    const auto byte = static_cast<uint8_t>(blocks[at / 2]);
    const int exponent = static_cast<uint8_t>(scales[at / 32]) - 127;
    return std::ldexp(codes[at % 2 ? byte >> 4 : byte & 15], exponent);
  };
  Values gate, up;
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 64; ++j) {
      gate.push_back(element(5, 2 * i, j));
      up.push_back(element(5, 2 * i + 1, j));
    }
  }
  EXPECT_TRUE(model.at("1.experts.5.gate") == gate);
  EXPECT_TRUE(model.at("1.experts.5.up") == up);
  const Values bias = FloatsOf(raw.at(name + "_bias"));
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(model.at("1.experts.5.gate_bias")[i], bias[5 * 128 + 2 * i]);
    EXPECT_EQ(model.at("1.experts.5.up_bias")[i], bias[5 * 128 + 2 * i + 1]);
  }
}

TEST(LoadWeights, PartsOfAllRanksMakeTheWhole) {
  for (const std::string& name : kFixtures) {
    const auto dir = FixtureDir(name);
    const ModelConfig config = LoadModelConfig(dir);
    const Roles whole = Assemble(dir, config, {1, 1});
    for (const MeshShape& shape : {MeshShape{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(name + " tp " + std::to_string(shape.tp) + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
    }
  }
}

TEST(LoadWeights, PartsOfEachFamilyMakeTheWholeAndHaveThePlannedBytes) {
  for (const std::filesystem::path& dir : FamilyDirs()) {
    const ModelConfig config = LoadModelConfig(dir);
    const Roles whole = Assemble(dir, config, {1, 1});
    for (const MeshShape& shape : {MeshShape{2, 1}, {2, 2}}) {
      SCOPED_TRACE(dir.filename().string() + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
      for (int r = 0; r < 2; ++r) {
        const Mesh mesh(shape, r);
        EXPECT_EQ(LoadWeights(dir, config, mesh, {}).bytes_mapped,
                  WeightBytesPerRank(config, mesh));
      }
    }
  }
}

// With heads of half the size the same tensors can be sharded eight ways.
TEST(LoadWeights, EightRanks) {
  for (const std::string name : {"qwen2_moe", "olmoe"}) {
    const auto dir = FixtureDir(name);
    json text = json::parse(ReadBytes(dir / "config.json"));
    text["num_attention_heads"] = 8;
    text["num_key_value_heads"] = name == "olmoe" ? 8 : 4;
    const ModelConfig config = ParseModelConfig(text.dump());
    const Roles whole = Assemble(dir, config, {1, 1});
    for (const MeshShape& shape : {MeshShape{8, 4}, {8, 1}, {8, 8}}) {
      SCOPED_TRACE(name + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
    }
  }
}

TEST(LoadWeights, WholeSharedExpertOnEveryRank) {
  const auto dir = FixtureDir("deepseek_v3");
  const ModelConfig config = LoadModelConfig(dir);
  const ModelWeights one = LoadWeights(dir, config, Mesh(), {});
  for (int r = 0; r < 2; ++r) {
    const ModelWeights two =
        LoadWeights(dir, config, Mesh({2, 2}, r), {.replicated_shared_expert = true});
    EXPECT_TRUE(Dequantize(two.layers[1].moe.shared.down) ==
                Dequantize(one.layers[1].moe.shared.down));
  }
}

TEST(LoadWeights, RanksMapOnlyTheirShare) {
  const auto dir = FixtureDir("mixtral");
  const ModelConfig config = LoadModelConfig(dir);
  size_t total = 0, last = 0;
  const LoadOptions options{.progress = [&](size_t done, size_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  }};
  const ModelWeights whole = LoadWeights(dir, config, Mesh(), options);
  EXPECT_GT(total, 0u);
  EXPECT_EQ(last, total);
  const ModelWeights part = LoadWeights(dir, config, Mesh({4, 4}, 0), {});
  EXPECT_LT(part.bytes_mapped, whole.bytes_mapped / 2);
  // The stored matrix of the gate has 64 columns.
  EXPECT_EQ(whole.layers[0].moe.experts[0].gate.stored_k, 64);
  EXPECT_EQ(CheckCheckpoint(dir, config), whole.bytes_mapped);
}

TEST(LoadWeights, BytesOfARankAreThoseOfThePlan) {
  for (const std::string& name : kFixtures) {
    const auto dir = FixtureDir(name);
    const ModelConfig config = LoadModelConfig(dir);
    for (const MeshShape& shape : {MeshShape{1, 1}, {2, 2}, {4, 1}, {4, 2}}) {
      for (int r = 0; r < shape.tp; ++r) {
        SCOPED_TRACE(name + " rank " + std::to_string(r) + " of " + std::to_string(shape.tp));
        const Mesh mesh(shape, r);
        EXPECT_EQ(LoadWeights(dir, config, mesh, {}).bytes_mapped,
                  WeightBytesPerRank(config, mesh));
      }
    }
  }
}

// ExpertBytes equals the growth of WeightBytesPerRank per layer if each layer has one more expert.
TEST(LoadWeights, BytesOfAnExpertAreThoseOfThePlan) {
  for (const std::string& name : kFixtures) {
    const ModelConfig config = LoadModelConfig(FixtureDir(name));
    if (!config.has_moe()) continue;
    const auto layers = std::ranges::count_if(config.layers, &LayerConfig::moe);
    for (const std::optional<DType> dtype : {std::optional<DType>(), {DType::kBF16}})
      for (const int moe_tp : {1, 2}) {
        SCOPED_TRACE(name + " in " + std::to_string(moe_tp) + " slices");
        const Mesh mesh({.tp = moe_tp}, 0);
        LoadOptions options;
        options.gpu_plain_dtype = dtype;
        const size_t before = WeightBytesPerRank(config, mesh, options);
        options.placements.assign(config.layers.size(),
                                  ExpertPlacement::Trivial(config.moe->router.num_experts, 1));
        EXPECT_NEAR(static_cast<double>(WeightBytesPerRank(config, mesh, options) - before),
                    static_cast<double>(layers * ExpertBytes(config, mesh, options)),
                    static_cast<double>(layers));
      }
  }
}

TEST(LoadWeights, PackedExpertsAreCountedAsTheyAreStored) {
  const auto config =
      ParseModelConfig(ReadBytes(FixtureDir("gpt_oss") / "config.json"));  // MXFP4, 64 × 64
  const auto bytes = [&](const MeshShape& shape, std::optional<DType> gpu_plain_dtype,
                         bool packs_experts) {
    LoadOptions options;
    options.gpu_plain_dtype = gpu_plain_dtype;
    options.packs_experts = packs_experts;
    return WeightBytesPerRank(config, Mesh(shape, 0), options);
  };
  for (const MeshShape& shape : {MeshShape{.tp = 1}, MeshShape{.tp = 2, .ep = 2}}) {
    const size_t stored = bytes(shape, std::nullopt, false);
    EXPECT_GT(bytes(shape, DType::kBF16, false), stored);
    EXPECT_EQ(bytes(shape, DType::kBF16, true), stored);
  }
  // The GPU cannot pack a slice of 32 columns.
  const MeshShape slices = {.tp = 2, .ep = 1};
  EXPECT_EQ(bytes(slices, DType::kBF16, true), bytes(slices, DType::kBF16, false));
}

TEST(LoadWeights, FlagsThatDoNotSplitTheModel) {
  const auto message = [](const std::string& fixture, const MeshShape& shape,
                          const char* patch = "{}") {
    const auto dir = FixtureDir(fixture);
    json text = json::parse(ReadBytes(dir / "config.json"));
    text.merge_patch(json::parse(patch));
    try {
      LoadWeights(dir, ParseModelConfig(text.dump()), Mesh(shape, 0), {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("mixtral", {8, 4}),
              HasSubstr("--tp 8 does not divide num_attention_heads 4"));
  EXPECT_THAT(message("qwen2_moe", {4, 1}, R"({"num_attention_heads": 12, "head_dim": 8,
                                               "num_key_value_heads": 3})"),
              HasSubstr("num_key_value_heads 3"));
  EXPECT_THAT(message("mixtral", {4, 1}, R"({"intermediate_size": 98})"), HasSubstr("--ep 1"));
  EXPECT_THAT(message("llama", {4, 1}, R"({"intermediate_size": 3})"),
              HasSubstr("intermediate_size 3"));
}

TEST(LoadWeights, UnknownFormatNamesTheFlag) {
  try {
    LoadWeights("", LoadModelConfig(FixtureDir("llama")), Mesh(), {.load_format = "gguf"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--load-format gguf"));
  }
}

}  // namespace
}  // namespace switchyard
