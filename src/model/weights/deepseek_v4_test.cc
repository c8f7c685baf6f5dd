// The published form of DeepSeek-V4's checkpoints: FP8 blocks and MXFP4 experts, with exponents as
// scales.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "model/weights/assembled.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::Assemble;
using testing::ExpectSame;
using ::testing::HasSubstr;
using testing::RawTensors;
using testing::TempDir;

// A checkpoint twice: in the published form, and in bfloat16 with the same values, which it
// represents exactly.
class Published {
 public:
  Published() {
    const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families/deepseek_v4";
    config_ = json::parse(testing::ReadBytes(dir / "config.json"));
    config_["moe_intermediate_size"] = kWidth;
    plain = published = testing::ReadSafetensors(dir);
    for (const auto& [name, tensor] : RawTensors(plain)) {
      const bool routed = name.find(".experts.") != std::string::npos;
      if (routed) {
        AddFourBits(name);
      } else if (name.find("compressor") == std::string::npos &&
                 (name.find(".attn.w") != std::string::npos || name.ends_with("wq_b.weight") ||
                  name.find("shared_experts") != std::string::npos)) {
        const bool shared = name.find("shared_experts") != std::string::npos;
        AddBlocks(name, shared ? std::vector<int64_t>{kWidth, kWidth} : tensor.shape);
      }
    }
  }

  std::string Config(bool quantized, const json& patch = json::object()) const {
    json config = config_;
    config["expert_dtype"] = "fp4";
    if (quantized)
      config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                       {"fmt", "e4m3"},
                                       {"quant_method", "fp8"},
                                       {"scale_fmt", "ue8m0"},
                                       {"weight_block_size", {128, 128}}};
    config.merge_patch(patch);
    return config.dump();
  }

  RawTensors plain, published;

 private:
  static constexpr int64_t kWidth = 32;  // the hidden size too, so matrices of experts are square

  uint8_t Byte() { return static_cast<uint8_t>(random_()); }
  uint8_t Exponent() { return static_cast<uint8_t>(118 + random_() % 8); }

  void SetPlain(const std::string& name, std::vector<int64_t> shape,
                const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(uint16_t), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const BF16 x = ToBF16(values[i]);
      EXPECT_EQ(ToFloat(x), values[i]);
      std::memcpy(bytes.data() + i * sizeof(x.bits), &x.bits, sizeof(x.bits));
    }
    plain[name] = {.dtype = "BF16", .shape = std::move(shape), .bytes = std::move(bytes)};
  }
  static std::string ScaleOf(const std::string& name) {
    return name.substr(0, name.size() - std::strlen("weight")) + "scale";
  }

  void AddFourBits(const std::string& name) {
    static constexpr float kCodes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    std::string codes, scales;
    std::vector<float> values;
    for (int64_t row = 0; row < kWidth; ++row) {
      const uint8_t exponent = Exponent();
      scales.push_back(static_cast<char>(exponent));
      for (int64_t i = 0; i < kWidth / 2; ++i) {
        const uint8_t both = Byte();
        codes.push_back(static_cast<char>(both));
        for (const int code : {both & 15, both >> 4})
          values.push_back((code < 8 ? 1.0f : -1.0f) * kCodes[code % 8] * FromE8M0(exponent));
      }
    }
    SetPlain(name, {kWidth, kWidth}, values);
    published[name] = {.dtype = "I8", .shape = {kWidth, kWidth / 2}, .bytes = codes};
    published[ScaleOf(name)] = {.dtype = "F8_E8M0", .shape = {kWidth, 1}, .bytes = scales};
  }

  void AddBlocks(const std::string& name, const std::vector<int64_t>& shape) {
    const int64_t block_rows = (shape[0] + 127) / 128, block_columns = (shape[1] + 127) / 128;
    std::string scales, codes;
    for (int64_t i = 0; i < block_rows * block_columns; ++i)
      scales.push_back(static_cast<char>(Exponent()));
    std::vector<float> values;
    for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
      uint8_t code = Byte();
      if ((code & 127) == 127) code = 0;  // NaN
      codes.push_back(static_cast<char>(code));
      const int64_t block = i / shape[1] / 128 * block_columns + i % shape[1] / 128;
      values.push_back(ToFloat(F8E4M3{code}) * FromE8M0(static_cast<uint8_t>(scales[block])));
    }
    SetPlain(name, shape, values);
    published[name] = {.dtype = "F8_E4M3", .shape = shape, .bytes = codes};
    published[ScaleOf(name)] = {
        .dtype = "F8_E8M0", .shape = {block_rows, block_columns}, .bytes = scales};
  }

  std::mt19937 random_{5};
  json config_;
};

std::filesystem::path Write(const TempDir& dir, const RawTensors& tensors) {
  testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
  return dir.path();
}

TEST(DeepseekV4Weights, ThePublishedFormHasTheValuesOfItsCodesAndExponents) {
  const Published p;
  const TempDir plain_dir, published_dir;
  const auto plain = Write(plain_dir, p.plain), published = Write(published_dir, p.published);
  const ModelConfig plain_config = ParseModelConfig(p.Config(false));
  const ModelConfig config = ParseModelConfig(p.Config(true));
  EXPECT_TRUE(config.unknown_keys.empty() || config.unknown_keys.front() != "expert_dtype");
  const testing::Roles want = Assemble(plain, plain_config, {1, 1});
  ExpectSame(Assemble(published, config, {1, 1}), want);
  ExpectSame(Assemble(published, config, {2, 2}), want);
  EXPECT_NO_THROW(CheckCheckpoint(published, config));
  const ModelWeights weights = LoadWeights(published, config, Mesh(), {});
  EXPECT_EQ(weights.layers[1].compressed.q_b.w.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights.layers[1].compressed.index_q.w.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights.layers[1].compressed.o_a[0].format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights.layers[1].moe.shared.up.format, WeightFormat::kFp8Block);
  EXPECT_EQ(weights.layers[1].moe.experts[3].down.format, WeightFormat::kMxfp4);
  for (int rank = 0; rank < 2; ++rank) {
    const Mesh mesh({2, 2}, rank);
    EXPECT_EQ(LoadWeights(published, config, mesh, {}).bytes_mapped,
              WeightBytesPerRank(config, mesh));
  }
}

TEST(DeepseekV4Weights, DamagedScalesAreNamed) {
  Published p;
  const ModelConfig config = ParseModelConfig(p.Config(true));
  const auto message = [&] {
    const TempDir dir;
    return testing::MessageOf([&] { LoadWeights(Write(dir, p.published), config, Mesh(), {}); });
  };
  EXPECT_EQ(message(), "no error");
  for (const char* name : {"layers.1.attn.wq_b.scale", "layers.2.ffn.experts.3.w2.scale"}) {
    char& byte = p.published.at(name).bytes[0];
    const char good = std::exchange(byte, static_cast<char>(255));
    EXPECT_THAT(message(), HasSubstr(name));
    byte = good;
  }
  p.published.erase("layers.2.ffn.experts.3.w2.scale");
  EXPECT_THAT(message(), HasSubstr("1 tensor that config.json implies is missing"));
}

TEST(DeepseekV4Weights, OtherTypesOfExpertsAreRefused) {
  const Published p;
  EXPECT_THAT(testing::MessageOf([&] {
                ParseModelConfig(p.Config(true, {{"expert_dtype", "int3"}}));
              }),
              HasSubstr("expert_dtype is \"int3\"; want fp4 or fp8"));
  const ModelConfig all_fp8 = ParseModelConfig(p.Config(true, {{"expert_dtype", "fp8"}}));
  EXPECT_EQ(all_fp8.quantization.rules.size(), 1u);
}

}  // namespace
}  // namespace switchyard
