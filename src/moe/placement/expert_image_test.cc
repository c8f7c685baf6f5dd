// Experts are serialized and copied in pieces of any size. All weights are unchanged, in every
// format.
#include "moe/placement/expert_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "moe/test_layer.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

using kernels::SameBits;

std::vector<float> Numbers(const WeightView& w) {
  std::vector<float> all(w.n * w.k);
  for (int64_t i = 0; i < w.n; ++i) DequantizeRow(w, i, 0, w.k, all.data() + i * w.k);
  return all;
}
std::vector<float> Bias(const float* bias, int64_t n) {
  return bias ? std::vector<float>(bias, bias + n) : std::vector<float>();
}

OwnedExpert CopyInPieces(const ExpertImage& image, size_t piece) {
  std::shared_ptr<std::byte> run(
      static_cast<std::byte*>(::operator new(image.bytes(), std::align_val_t(64))),
      [](std::byte* p) { ::operator delete(p, std::align_val_t(64)); });
  std::memset(run.get(), 0xab, image.bytes());
  for (size_t at = 0; at < image.bytes(); at += piece)
    image.Copy(at, {run.get() + at, std::min(piece, image.bytes() - at)});
  return ExpertFromImage(run, image.bytes());
}

TEST(ExpertImage, KeepsEveryNumberInEveryFormat) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kFp8Block,
        WeightFormat::kFp8Channel, WeightFormat::kInt8Channel, WeightFormat::kInt4Group,
        WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    for (const bool biases : {false, true}) {
      const TestLayer layer({.format = format,
                             .activation = ActivationFormat::kFp8Tensor,
                             .hidden = 192,
                             .intermediate = 320,
                             .num_experts = 2,
                             .clamped_with_biases = biases});
      // Tests the whole expert, and an MoE-TP slice that begins inside a block of scales.
      for (const int parts : {1, 2}) {
        SCOPED_TRACE(fmt::format("{} biases {} parts {}", Name(format), biases, parts));
        const auto want = TestLayer::Slice(layer.whole.experts[1], parts, parts - 1);
        const ExpertImage image({.weights = want});
        for (const size_t piece : {size_t{1} << 20, size_t{1000}, size_t{77}}) {
          const OwnedExpert got = CopyInPieces(image, piece);
          const auto& e = got.weights;
          for (const auto& [one, other] : {std::pair(e.gate, want.gate), std::pair(e.up, want.up),
                                           std::pair(e.down, want.down)}) {
            EXPECT_EQ(one.format, other.format);
            EXPECT_EQ(one.activation, other.activation);
            EXPECT_EQ(one.input_scale, other.input_scale);
            EXPECT_TRUE(SameBits(Numbers(one), Numbers(other)));
          }
          EXPECT_EQ(Bias(e.gate_bias, e.gate.n), Bias(want.gate_bias, want.gate.n));
          EXPECT_EQ(Bias(e.up_bias, e.up.n), Bias(want.up_bias, want.up.n));
          EXPECT_EQ(Bias(e.down_bias, e.down.n), Bias(want.down_bias, want.down.n));
        }
      }
    }
  }
}

TEST(ExpertImage, PanelsRoundTrip) {
  kernels::Random random(2);
  constexpr int64_t kRows = 40, kColumns = 192;
  const WeightView rows =
      Quantize(WeightFormat::kInt4Group, random.Normal(kRows * kColumns), kRows, kColumns,
               {.group_size = 64, .symmetric = false, .search = true});
  std::vector<uint8_t> panels(PanelMatrixBytes(WeightFormat::kInt4ZeroPanels, 64, kRows, kColumns));
  for (int64_t i = 0; i < kRows; ++i)
    PutViewRow(rows, i, WeightFormat::kInt4ZeroPanels, i, panels.data());
  WeightView all = rows;
  all.format = WeightFormat::kInt4ZeroPanels;
  all.data = panels.data();
  all.scales = all.zeros = nullptr;
  const kernels::ExpertWeights want{
      .gate = all.Rows(16, 40), .up = all.Rows(20, 31), .down = all.Cols(128, 192)};
  const ExpertImage image({.weights = want});
  const OwnedExpert got = CopyInPieces(image, 1000);
  EXPECT_EQ(Numbers(got.weights.gate), Numbers(want.gate));
  EXPECT_EQ(Numbers(got.weights.up), Numbers(want.up));
  EXPECT_EQ(Numbers(got.weights.down), Numbers(want.down));
  EXPECT_EQ(Numbers(want.down).front(), Numbers(rows).at(128));
}

// The scale of the whole matrix is not in the panels.
TEST(ExpertImage, PanelsKeepTheirGlobalScale) {
  kernels::Random random(3);
  constexpr int64_t kRows = 20, kColumns = 160;
  const WeightView rows =
      Quantize(WeightFormat::kNvfp4, random.Normal(kRows * kColumns), kRows, kColumns);
  std::vector<uint8_t> panels(PanelMatrixBytes(WeightFormat::kNvfp4Panels, 0, kRows, kColumns));
  for (int64_t i = 0; i < kRows; ++i)
    PutViewRow(rows, i, WeightFormat::kNvfp4Panels, i, panels.data());
  WeightView all = rows;
  all.format = WeightFormat::kNvfp4Panels;
  all.data = panels.data();
  all.scales = nullptr;
  const OwnedExpert got =
      CopyInPieces(ExpertImage({.weights = {.gate = all, .up = all, .down = all}}), 700);
  EXPECT_EQ(Numbers(got.weights.up), Numbers(rows));
}

TEST(ExpertImage, InterleavedRowsAndZeroPointsRoundTrip) {
  kernels::Random random(1);
  WeightView stored =
      Quantize(WeightFormat::kInt4Group, random.Normal(64 * 96, 1.0f), 64, 96, {.group_size = 32});
  std::vector<uint8_t> zeros(64 * 3);
  for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random.Below(16));
  stored.zeros = zeros.data();
  kernels::ExpertWeights want{.gate = stored, .up = stored, .down = stored};
  want.gate.row_step = want.up.row_step = 2;
  want.gate.n = want.up.n = 32;
  want.up.row0 = 1;
  const OwnedExpert got = CopyInPieces(ExpertImage({.weights = want}), 500);
  EXPECT_TRUE(SameBits(Numbers(got.weights.gate), Numbers(want.gate)));
  EXPECT_TRUE(SameBits(Numbers(got.weights.up), Numbers(want.up)));
  EXPECT_TRUE(SameBits(Numbers(got.weights.down), Numbers(want.down)));
}

TEST(ExpertImage, MemoryGoesWithTheLastView) {
  const TestLayer layer({.format = WeightFormat::kInt8Channel, .num_experts = 1});
  OwnedExpert got = CopyInPieces(ExpertImage({.weights = layer.whole.experts[0]}), 4096);
  const std::weak_ptr<const void> owner = got.weights.gate.owner;
  WeightView down = got.weights.down;
  got = {};
  EXPECT_FALSE(owner.expired());
  down = {};
  EXPECT_TRUE(owner.expired());
}

// Experts without a gate (Activation::kRelu2).
TEST(ExpertImage, AMatrixThatIsBothGateAndUpIsStoredOnce) {
  const TestLayer layer(
      {.format = WeightFormat::kBF16, .hidden = 64, .intermediate = 96, .num_experts = 1});
  kernels::ExpertWeights want = layer.whole.experts[0];
  const size_t bytes_of_three = ExpertImage({.weights = want}).bytes();
  want.gate = want.up;
  const ExpertImage image({.weights = want});
  EXPECT_LT(image.bytes(), bytes_of_three);
  const OwnedExpert got = CopyInPieces(image, 1000);
  EXPECT_EQ(got.weights.gate.data, got.weights.up.data);
  EXPECT_TRUE(SameBits(Numbers(got.weights.gate), Numbers(want.up)));
  EXPECT_TRUE(SameBits(Numbers(got.weights.down), Numbers(want.down)));
}

}  // namespace
}  // namespace switchyard
