#include "quant/ggml_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

// Random blocks of each type, and the values that the Python package gguf decodes from them
// (tests/data/gguf/make_gguf.py).
class GgmlBlocks : public ::testing::TestWithParam<GgmlTypeId> {
 protected:
  GgmlBlocks() {
    std::ifstream file(std::filesystem::path(SWITCHYARD_TEST_DATA) / "gguf/blocks.safetensors",
                       std::ios::binary);
    text_.assign(std::istreambuf_iterator<char>(file), {});
    const TensorEntries entries = ParseSafetensorsHeader(
        {reinterpret_cast<const uint8_t*>(text_.data()), text_.size()}, text_.size(), "blocks");
    const std::string name(type().name);
    const TensorEntry bytes = entries.at(name + ".bytes"), values = entries.at(name + ".values");
    bytes_.assign(text_.begin() + static_cast<int64_t>(bytes.begin),
                  text_.begin() + static_cast<int64_t>(bytes.end));
    values_.resize((values.end - values.begin) / sizeof(float));
    std::memcpy(values_.data(), text_.data() + values.begin, values.end - values.begin);
  }

  const GgmlType& type() const { return *FindGgmlType(GetParam()); }

  std::string text_;
  std::vector<uint8_t> bytes_;
  std::vector<float> values_;
};

TEST_P(GgmlBlocks, EqualTheReferenceValues) {
  ASSERT_EQ(bytes_.size() / type().block_bytes, values_.size() / type().block_size);
  std::vector<float> out(values_.size());
  DequantizeGgml(type(), bytes_.data(), static_cast<int64_t>(out.size()), out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], values_[i]) << type().name << " " << i;
    EXPECT_TRUE(std::isfinite(out[i]));
  }
}

TEST_P(GgmlBlocks, DequantizesPartsOfARow) {
  std::vector<float> out(static_cast<size_t>(type().block_size));
  DequantizeGgml(type(), bytes_.data() + type().block_bytes, type().block_size, out.data());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], values_[out.size() + i]);
  DequantizeGgml(type(), nullptr, 0, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlBlocks,
                         ::testing::Values(kGgmlQ8_0, kGgmlQ4_0, kGgmlMXFP4, kGgmlQ4_K, kGgmlQ5_K,
                                           kGgmlQ6_K, kGgmlIQ4_XS),
                         [](const auto& info) {
                           return std::string(FindGgmlType(info.param)->name);
                         });

TEST(GgmlPlain, AreTheirNumbers) {
  const float x[3] = {1.5f, -2.25f, 1e-30f};
  float out[3];
  DequantizeGgml(*FindGgmlType(kGgmlF32), reinterpret_cast<const uint8_t*>(x), 3, out);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out[i], x[i]);
  const uint16_t halves[2] = {0x3c00, 0xc000}, bf16[2] = {0x3f80, 0xc000};
  DequantizeGgml(*FindGgmlType(kGgmlF16), reinterpret_cast<const uint8_t*>(halves), 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  DequantizeGgml(*FindGgmlType(kGgmlBF16), reinterpret_cast<const uint8_t*>(bf16), 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
}

TEST(ReadsGgml, OnlyTypesWithReader) {
  EXPECT_TRUE(ReadsGgml(*FindGgmlType(kGgmlQ6_K)));
  EXPECT_FALSE(ReadsGgml(*FindGgmlType(10)));  // Q2_K
  EXPECT_EQ(FindGgmlType(4), nullptr);
  EXPECT_EQ(ReadableGgmlTypes(), "F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, IQ4_XS, MXFP4");
}

// Repacked Q4_0 blocks are a kInt4Group view of the same numbers.
TEST(ReorderGgmlNibbles, GivesTheOrderOfViews) {
  uint8_t block[18] = {0x00, 0x3c};  // d = 1
  for (int j = 0; j < 16; ++j) block[2 + j] = static_cast<uint8_t>(j * 37 + 11);
  float want[32], got[32];
  DequantizeGgml(*FindGgmlType(kGgmlQ4_0), block, 32, want);
  uint8_t codes[16];
  ReorderGgmlNibbles(block + 2, codes);
  const float scale = 1.0f;
  DequantizeRow({.format = WeightFormat::kInt4Group,
                 .data = codes,
                 .scales = &scale,
                 .group_size = 32,
                 .stored_k = 32,
                 .n = 1,
                 .k = 32},
                0, 0, 32, got);
  for (int j = 0; j < 32; ++j) EXPECT_EQ(got[j], want[j]) << j;
}

}  // namespace
}  // namespace switchyard
