#include "moe/cuda/placement/expert_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/testing.h"
#include "moe/cuda/testing.h"
#include "moe/placement/expert_image.h"
#include "moe/placement/test_placements.h"

namespace switchyard::cuda {
namespace {

constexpr int kExperts = 10, kRedundant = 3;
constexpr int64_t kTokens = 20;

struct Case {
  TestLayer layer;
  DType dtype = DType::kBF16;
  MoeOptions options;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](TestLayer::Spec spec, DType dtype) {
    Case c{TestLayer(spec), dtype, {}};
    c.options.num_redundant_experts = kRedundant;
    c.options.fp8_group_activations = spec.format == WeightFormat::kFp8Block;
    c.layer.config.placement = ExpertPlacement::Trivial(kExperts, kRedundant);
    cases.push_back(std::move(c));
  };
  add({.shared = true}, DType::kF32);
  add({.format = WeightFormat::kInt8Channel}, DType::kF32);
  add({.format = WeightFormat::kBF16,
       .hidden = 256,
       .intermediate = 384,
       .clamped_with_biases = true},
      DType::kBF16);
  add({.format = WeightFormat::kFp8Block,
       .activation = ActivationFormat::kFp8Group,
       .hidden = 512,
       .intermediate = 256,
       .shared = true},
      DType::kBF16);
  add({.format = WeightFormat::kBF16, .hidden = 256, .intermediate = 384, .squared = true},
      DType::kBF16);
  for (const WeightFormat packed :
       {WeightFormat::kMxfp4, WeightFormat::kNvfp4, WeightFormat::kInt4Group})
    add({.format = packed, .hidden = 256, .intermediate = 384}, DType::kBF16);
  return cases;
}

// A layer whose experts move, and buffers of a captured pass.
struct Moving {
  explicit Moving(const Case& c)
      : layer(c.layer), gpu(c.layer, c.dtype, c.options), bytes(kTokens * layer.spec.hidden * 4) {
    gpu.backend->ReserveMoves(1);
    x = gpu.device->Allocate(bytes);
    y = gpu.device->Allocate(bytes);
  }
  // Runs a pass. The second call captures it, and later calls replay it.
  std::vector<float> Run() {
    const auto hidden = layer.Hidden(kTokens);
    const std::vector<int64_t> counts = {kTokens};
    gpu.device->CopyIn(x.get(), hidden.data(), bytes);
    gpu.device->Run(/*key=*/1, [&] {
      gpu.moe->Forward(*gpu.state, static_cast<const float*>(x.get()), {counts, counts},
                       static_cast<float*>(y.get()));
    });
    std::vector<float> out(hidden.size());
    gpu.device->CopyOut(out.data(), y.get(), bytes);
    return out;
  }
  // Moves experts in the same way as MovableLayers. Two of three experts are taken from the GPU;
  // the third is loaded again.
  void Move(uint32_t seed) {
    const ExpertPlacement before = gpu.moe->placement();
    ExpertPlacement placement = RandomPlacement(kExperts, kRedundant, seed);
    std::map<int32_t, OwnedExpert> have;
    for (int p = 0; p < before.num_physical(); ++p)
      have.try_emplace(before.physical_to_logical()[p], gpu.moe->Held(p));
    std::vector<OwnedExpert> experts = ShardUnder(layer, Mesh(), placement);
    std::map<int32_t, OwnedExpert> loaded;
    for (size_t p = 0; p < experts.size(); ++p) {
      const int32_t expert = placement.physical_to_logical()[p];
      if ((expert + seed) % 3 != 0) {
        experts[p] = have.at(expert);
        continue;
      }
      if (!loaded.contains(expert)) {
        gpu.moe->CheckFormats(experts[p].weights);
        // EPLB also stages experts on its own thread.
        std::thread([&] { loaded[expert] = gpu.moe->Stage(experts[p]); }).join();
      }
      experts[p] = loaded.at(expert);
    }
    gpu.moe->SwitchPlacement(std::move(placement), std::move(experts));
  }

  const TestLayer& layer;
  OnGpu gpu;
  const size_t bytes;
  std::shared_ptr<void> x, y;
};

TEST(CudaExpertMoves, ChangeNoBitOfDirectAndReplayedPasses) {
  SKIP_WITHOUT_GPU();
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c.layer.spec.format));
    Moving moving(c);
    const std::vector<float> want = moving.Run();
    for (uint32_t move = 0; move < 12; ++move) {
      moving.Move(move);
      ASSERT_TRUE(kernels::SameBits(moving.Run(), want)) << "after move " << move;
      ASSERT_TRUE(kernels::SameBits(moving.gpu.Forward(c.layer, kTokens), want)) << move;
    }
  }
}

// Without Stage, Swap uploads the experts itself.
TEST(CudaExpertMoves, TakeExpertsInHostMemory) {
  SKIP_WITHOUT_GPU();
  const Case c = Cases().front();
  Moving moving(c);
  const std::vector<float> want = moving.Run();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    const ExpertPlacement placement = RandomPlacement(kExperts, kRedundant, seed);
    moving.gpu.moe->SwitchPlacement(placement, ShardUnder(c.layer, Mesh(), placement));
    EXPECT_TRUE(kernels::SameBits(moving.Run(), want)) << seed;
  }
}

// Two experts exchange their slots. If their weights did not move, the outputs would differ.
TEST(CudaExpertMoves, MoveWeightsWithTheExperts) {
  SKIP_WITHOUT_GPU();
  const Case c = Cases().front();
  Moving moving(c);
  const std::vector<float> want = moving.Run();
  std::vector<int32_t> map(kExperts + kRedundant);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i % kExperts);
  std::swap(map[0], map[1]);
  std::vector<OwnedExpert> unmoved;
  for (int p = 0; p < kExperts + kRedundant; ++p) unmoved.push_back(moving.gpu.moe->Held(p));
  const ExpertPlacement swapped(kExperts, map);
  moving.gpu.moe->SwitchPlacement(swapped, unmoved);
  EXPECT_FALSE(kernels::SameBits(moving.Run(), want));
}

// An expert of another rank arrives as an image of the weights on its GPU.
TEST(CudaExpertMoves, AnExpertMovesThroughHostMemory) {
  SKIP_WITHOUT_GPU();
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c.layer.spec.format));
    Moving moving(c);
    if (!moving.gpu.moe->readable()) continue;
    const std::vector<float> want = moving.Run();
    std::vector<OwnedExpert> experts;
    for (int p = 0; p < kExperts + kRedundant; ++p) {
      const ExpertImage image(moving.gpu.moe->Expert(p));
      const auto run =
          std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(
                                         ExpertImage::kAlignment, (image.bytes() + 63) / 64 * 64)),
                                     std::free);
      image.Copy(0, {run.get(), image.bytes()});
      OwnedExpert arrived = ExpertFromImage(run, image.bytes());
      moving.gpu.moe->CheckFormats(arrived.weights);
      experts.push_back(moving.gpu.moe->Stage(std::move(arrived)));
    }
    moving.gpu.moe->SwitchPlacement(c.layer.config.placement, std::move(experts));
    EXPECT_TRUE(kernels::SameBits(moving.Run(), want));
  }
}

TEST(CudaExpertMoves, RefuseExpertsInAnotherFormat) {
  SKIP_WITHOUT_GPU();
  const auto refusal = [](const Case& to, const TestLayer& from) {
    Moving moving(to);
    return ErrorOf([&] { moving.gpu.moe->CheckFormats(from.whole.experts[0]); });
  };
  const auto cases = Cases();
  const Case& biased = cases[2];
  const Case& fp8 = cases[3];
  EXPECT_EQ(refusal(fp8, fp8.layer), "no error");
  TestLayer::Spec plain = fp8.layer.spec;
  plain.format = WeightFormat::kBF16;
  EXPECT_THAT(refusal(fp8, TestLayer(plain)), ::testing::HasSubstr("format"));
  EXPECT_THAT(refusal(fp8, biased.layer), ::testing::HasSubstr("size"));
}

TEST(CudaSpareExperts, BlocksReturnWithTheirExperts) {
  SKIP_WITHOUT_GPU();
  const auto spare = std::make_shared<SpareExperts>(512, 2);
  auto first = std::make_unique<DeviceExpert>(spare, spare->Take());
  const DeviceExpert second(spare, spare->Take());
  EXPECT_NE(first->block, second.block);
  std::byte* const block = first->block;
  first.reset();
  EXPECT_EQ(spare->Take(), block);
}

}  // namespace
}  // namespace switchyard::cuda
