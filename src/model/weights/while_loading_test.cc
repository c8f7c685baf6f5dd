// `--quantization`: plain checkpoints that are quantized on load.
#include <algorithm>
#include <cmath>

#include "model/weights/assembled.h"
#include "quant/quantize.h"

namespace switchyard {
namespace {

using testing::Assemble;
using testing::ChangedCheckpoint;
using testing::Dequantize;
using testing::ExpectSame;
using testing::FixtureDir;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::QuantizedDir;
using testing::Roles;
using testing::Values;

using W = WeightFormat;

const struct Method {
  const char* name;
  WeightFormat experts, others;
} kMethods[] = {
    {"fp8", W::kFp8Block, W::kFp8Block},
    {"w8a8_fp8", W::kFp8Channel, W::kFp8Channel},
    {"w8a8_int8", W::kInt8Channel, W::kInt8Channel},
    {"int4", W::kInt4Group, W::kInt4Group},
    {"nvfp4", W::kNvfp4, W::kNvfp4},
    {"w4afp8", W::kInt4Group, W::kFp8Block},
    {"mxfp4", W::kMxfp4, W::kBF16},
};

bool IsPacked(const std::string& role, const Method& m) {
  if (role.find(".experts.") != std::string::npos) return role.find("bias") == std::string::npos;
  const bool linear = role.ends_with(".q") || role.ends_with(".k") || role.ends_with(".v") ||
                      role.ends_with(".o") || role.find(".dense.") != std::string::npos ||
                      role.find(".shared.") != std::string::npos;
  return linear && m.others != W::kBF16;
}

// The complete matrix, quantized to `format` and dequantized.
Values Packed(const Values& plain, W format, int64_t k, const Int4Packing& int4) {
  const auto n = static_cast<int64_t>(plain.size()) / k;
  return Dequantize(Quantize(format, plain, n, k, int4));
}

TEST(WhileLoading, LinearsArePackedAndNothingElse) {
  const auto dir = FixtureDir("qwen2_moe");  // with dense layers and a shared expert
  const Roles plain = Assemble(dir, LoadModelConfig(dir), {1, 1});
  for (const Method& m : kMethods) {
    SCOPED_TRACE(m.name);
    const bool of_groups = std::string(m.name) == "int4";
    const Int4Packing int4{
        .group_size = of_groups ? 32 : 128, .symmetric = !of_groups, .search = true};
    const ModelConfig config = LoadModelConfig(dir, {}, {.method = m.name});
    const Roles packed = Assemble(dir, config, {1, 1});
    for (const auto& [role, values] : packed) {
      if (!IsPacked(role, m)) {
        EXPECT_TRUE(values == plain.at(role)) << role;
        continue;
      }
      int64_t k = config.hidden;
      if (role.ends_with("down")) {
        k = role.find(".dense.") != std::string::npos    ? config.intermediate
            : role.find(".shared.") != std::string::npos ? config.moe->shared_intermediate
                                                         : config.moe->intermediate;
      }
      const bool expert = role.find(".experts.") != std::string::npos;
      EXPECT_TRUE(values == Packed(plain.at(role), expert ? m.experts : m.others, k, int4)) << role;
    }
  }
}

TEST(WhileLoading, WeightsDoNotDependOnTheMesh) {
  for (const char* name : {"qwen2_moe", "mixtral", "deepseek_v3"}) {
    const auto dir = FixtureDir(name);
    for (const Method& m : kMethods) {
      const ModelConfig config = LoadModelConfig(dir, {}, {.method = m.name});
      const Roles whole = Assemble(dir, config, {1, 1});
      for (const MeshShape& shape : {MeshShape{2, 1}, {4, 2}}) {
        SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", name, m.name, shape.tp, shape.ep));
        ExpectSame(Assemble(dir, config, shape), whole);
      }
    }
  }
}

TEST(WhileLoading, NumbersThatNoFormatHoldsAreRefused) {
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  for (const char* bad : {"\xc0\x7f", "\x80\xff"}) {  // bfloat16: NaN, -infinity
    ChangedCheckpoint c("qwen3_moe");
    ASSERT_EQ(c.tensors.at(name).dtype, "BF16");
    std::copy_n(bad, 2,
                c.tensors[name].bytes.data() + static_cast<size_t>(3 * c.config.hidden + 5) * 2);
    for (const Method& m : kMethods) {
      SCOPED_TRACE(m.name);
      c.config = LoadModelConfig(FixtureDir("qwen3_moe"), {}, {.method = m.name});
      const std::string message = c.LoadMessage();
      EXPECT_THAT(message, HasSubstr("model.safetensors: tensor \"" + name + "\""));
      EXPECT_THAT(message, HasSubstr("in row 3"));
    }
  }
}

// Weights so small that their scales would be subnormal.
TEST(WhileLoading, TinyWeightsBecomeZeros) {
  ChangedCheckpoint c("qwen3_moe");
  std::string& bytes = c.tensors.at("model.layers.1.mlp.experts.2.up_proj.weight").bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 == 0 ? '\0' : '\x01';  // 2^-125
  for (const Method& m : kMethods) {
    // MXFP4 scales (e8m0) have the exponent range of bfloat16, so these weights do not become
    // zeros.
    if (m.experts == W::kMxfp4) continue;
    SCOPED_TRACE(m.name);
    c.config = LoadModelConfig(FixtureDir("qwen3_moe"), {}, {.method = m.name});
    const Roles roles = Assemble(c.Write(), c.config, {2, 1});
    for (const float x : roles.at("1.experts.2.up")) ASSERT_EQ(x, 0);
  }
}

// Dummy weights are generated in the requested format, with the same size.
TEST(WhileLoading, DummyWeightsHaveTheFormat) {
  const LoadOptions dummy{.load_format = "dummy"};
  for (const Method& m : kMethods) {
    SCOPED_TRACE(m.name);
    const ModelConfig config = LoadModelConfig(FixtureDir("qwen3_moe"), {}, {.method = m.name});
    const ModelWeights w = LoadWeights("", config, Mesh(), dummy);
    EXPECT_EQ(w.layers[0].moe.experts[0].gate.format, m.experts);
    EXPECT_EQ(w.layers[0].grouped.o.w.format, m.others);
    const Roles whole = Assemble("", config, {1, 1}, dummy);
    ExpectSame(Assemble("", config, {4, 2}, dummy), whole);
    double squares = 0;
    const Values& gate = whole.at("1.experts.2.gate");
    for (float x : gate) squares += double{x} * x;
    const double want = 1.0 / std::sqrt(config.hidden);
    EXPECT_GT(std::sqrt(squares / static_cast<double>(gate.size())), 0.6 * want);
    EXPECT_LT(std::sqrt(squares / static_cast<double>(gate.size())), 1.6 * want);
  }
}

// --quantization-config: its rules precede those of --quantization, and they alone reach the head.
TEST(WhileLoading, RulesChooseFormatsOfModules) {
  const auto dir = FixtureDir("qwen3_moe");
  const Roles plain = Assemble(dir, LoadModelConfig(dir), {1, 1});
  const ModelConfig config = LoadModelConfig(dir, {}, {.method = "mxfp4", .rules = R"({"rules": [
      {"targets": ["self_attn.o_proj"], "method": "none"},
      {"targets": ["re:.*self_attn.*"], "method": "int4", "group_size": 32},
      {"targets": ["lm_head", "embed_tokens"], "method": "w8a8_int8"}]})"});
  const ModelWeights w = LoadWeights(dir, config, Mesh(), {});
  EXPECT_EQ(w.layers[0].moe.experts[0].gate.format, W::kMxfp4);
  EXPECT_EQ(w.layers[0].grouped.q.w.format, W::kInt4Group);
  EXPECT_EQ(w.layers[0].grouped.q.w.group_size, 32);
  EXPECT_EQ(w.layers[0].grouped.o.w.format, W::kBF16);
  EXPECT_EQ(w.head.format, W::kInt8Channel);
  EXPECT_EQ(w.head.activation, ActivationFormat::kInt8Token);
  EXPECT_EQ(w.embedding.format, W::kInt8Channel);
  const Roles whole = Assemble(dir, config, {1, 1});
  EXPECT_TRUE(whole.at("head") == Packed(plain.at("head"), W::kInt8Channel, config.hidden, {}));
  EXPECT_TRUE(whole.at("embedding") ==
              Packed(plain.at("embedding"), W::kInt8Channel, config.hidden, {}));
  ExpectSame(Assemble(dir, config, {4, 2}), whole);
  const ModelWeights dummy = LoadWeights("", config, Mesh(), {.load_format = "dummy"});
  EXPECT_EQ(dummy.head.format, W::kInt8Channel);
  const ModelWeights exact =
      LoadWeights(dir,
                  LoadModelConfig(dir, {},
                                  {.rules = R"({"rules": [{"targets": ["lm_head"],
        "method": "w8a8_int8"}]})",
                                   .activations = "never"}),
                  Mesh(), {});
  EXPECT_EQ(exact.head.activation, ActivationFormat::kNone);
  EXPECT_EQ(exact.embedding.format, W::kBF16);
}

TEST(WhileLoading, ProgressCountsWhatIsPacked) {
  const auto dir = FixtureDir("qwen2_moe");
  const ModelConfig config = LoadModelConfig(dir, {}, {.method = "fp8"});
  size_t last = 0, total = 0;
  LoadWeights(dir, config, Mesh(), {.progress = [&](size_t done, size_t all) {
                EXPECT_GE(done, last);
                last = done;
                total = all;
              }});
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0u);
}

TEST(WhileLoading, MethodsThatDoNotFitAreRefused) {
  const auto message = [](const std::filesystem::path& dir, const char* method) {
    return MessageOf([&] { LoadModelConfig(dir, {}, {.method = method}); });
  };
  EXPECT_THAT(message(FixtureDir("qwen2_moe"), "gptq"), HasSubstr("--quantization gptq"));
  EXPECT_THAT(message(FixtureDir("qwen2_moe"), "gptq"), HasSubstr("w8a8_int8"));
  const std::string both = message(QuantizedDir("awq"), "fp8");
  EXPECT_THAT(both, HasSubstr("--quantization fp8"));
  EXPECT_THAT(both, HasSubstr("by awq"));
  EXPECT_EQ(message(QuantizedDir("awq"), "awq"), "no error");
  EXPECT_EQ(message(QuantizedDir("ct_int8"), "w8a8_int8"), "no error");
  EXPECT_EQ(message(QuantizedDir("modelopt_nvfp4"), "modelopt_fp4"), "no error");
  EXPECT_EQ(message(FixtureDir("gpt_oss"), "mxfp4"), "no error");
  EXPECT_THAT(
      MessageOf([] { LoadModelConfig(FixtureDir("qwen2_moe"), {}, {.activations = "sometimes"}); }),
      HasSubstr("--quantize-activations sometimes"));
}

}  // namespace
}  // namespace switchyard
