#include <gmock/gmock.h>

#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "train/gradients.h"

namespace switchyard::train {
namespace {

constexpr int kRanks = 3, kLayers = 5;
const MeshShape kShape{.tp = kRanks, .ep = kRanks};

struct Layers {
  explicit Layers(int rank) {
    for (int layer = 0; layer < kLayers; ++layer) {
      Parameter<float> p{.name = "w", .shape = {100}};
      p.gradient.assign(100, static_cast<float>(rank * 10 + layer) / 7.0f);
      parameters.push_back(std::move(p));
    }
    for (Parameter<float>& p : parameters) pointers.push_back(&p);
  }
  GradientSums::Parameters Of(int layer) const { return std::span(pointers).subspan(layer, 1); }

  std::vector<Parameter<float>> parameters;
  std::vector<Parameter<float>*> pointers;
};

TEST(GradientSums, EqualThoseAfterTheBackwardPass) {
  const auto sums_arena = SharedArena::Create(kRanks, RankComm::BytesPerRank(kShape) + 4096);
  RunRankThreads(
      kRanks, RankComm::BytesPerRank(kShape) + 4096,
      [&](int rank, const std::shared_ptr<SharedArena>& arena) {
        const auto comm = RankComm::Create(arena, kShape, rank);
        const auto beside = RankComm::Create(sums_arena, kShape, rank);
        GradientSums sums([&](GradientSums::Parameters p) { SumGradients(p, *beside->tp); },
                          sums_arena);
        for (int step = 0; step < 3; ++step) {
          const Layers here(rank), wanted(rank);
          for (int layer = kLayers - 1; layer >= 0; --layer) {
            sums.Start(here.Of(layer));
            comm->tp->Barrier("backward of the next layer");
          }
          sums.Await();
          SumGradients(wanted.pointers, *comm->tp);
          for (int layer = 0; layer < kLayers; ++layer) {
            EXPECT_EQ(here.parameters[layer].gradient, wanted.parameters[layer].gradient);
          }
        }
      });
}

// The error of one rank aborts the sums of the other ranks, so no rank waits forever.
TEST(GradientSums, EndWithTheRankThatFails) {
  const auto sums_arena = SharedArena::Create(kRanks, RankComm::BytesPerRank(kShape) + 4096);
  std::string error;
  try {
    RunRankThreads(kRanks, RankComm::BytesPerRank(kShape) + 4096,
                   [&](int rank, const std::shared_ptr<SharedArena>& /*arena*/) {
                     const auto beside = RankComm::Create(sums_arena, kShape, rank);
                     const Layers layers(rank);
                     GradientSums sums(
                         [&](GradientSums::Parameters p) { SumGradients(p, *beside->tp); },
                         sums_arena);
                     if (rank < 2) sums.Start(layers.Of(0));
                     if (rank == 0) {
                       sums.Abort("rank 0 failed: strange tokens");
                       throw Invalid("strange tokens");
                     }
                     sums.Await();
                   });
  } catch (const Error& e) {
    error = e.what();  // error of rank 0, or of a rank whose sum rank 0 aborted
  }
  EXPECT_THAT(error, ::testing::HasSubstr("strange tokens"));
}

}  // namespace
}  // namespace switchyard::train
