// Experts are transferred completely, for any sizes and order of batches.
#include "eplb/courier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "comm/device/rank_threads.h"
#include "kernels/testing.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

constexpr int kExperts = 10;

// An expert with its own size and values.
OwnedExpert Made(int layer, int32_t expert) {
  const int64_t n = 8 + 24 * (expert % 3), k = 32;
  const auto matrix = [&](uint32_t seed, int64_t rows, int64_t columns) {
    return Quantize(WeightFormat::kBF16, kernels::Random(seed).Normal(rows * columns, 1.0f), rows,
                    columns);
  };
  const auto seed = static_cast<uint32_t>(1000 * layer + 10 * expert);
  return {.weights = {.gate = matrix(seed, n, k),
                      .up = matrix(seed + 1, n, k),
                      .down = matrix(seed + 2, k, n)}};
}

std::vector<float> Numbers(const WeightView& w) {
  std::vector<float> all(w.n * w.k);
  for (int64_t i = 0; i < w.n; ++i) DequantizeRow(w, i, 0, w.k, all.data() + i * w.k);
  return all;
}

void ExpectSame(const OwnedExpert& one, const OwnedExpert& other) {
  EXPECT_TRUE(SameBits(Numbers(one.weights.gate), Numbers(other.weights.gate)));
  EXPECT_TRUE(SameBits(Numbers(one.weights.up), Numbers(other.weights.up)));
  EXPECT_TRUE(SameBits(Numbers(one.weights.down), Numbers(other.weights.down)));
}

std::vector<int32_t> RandomMap(int physical, uint32_t seed) {
  kernels::Random random(seed);
  std::vector<int32_t> map = random.Shuffled(kExperts);
  while (std::ssize(map) < physical) map.push_back(static_cast<int32_t>(random.Below(kExperts)));
  return map;
}

// Moves two layers from one random placement to another. Cancels the transfers after `stop_after`
// steps.
void Move(RankComm& comm, ExpertCourier& courier, uint32_t seed, int stop_after = -1) {
  constexpr int kPhysical = 13;
  const Mesh& mesh = comm.mesh;
  const RankTopology topology{.ranks = mesh.ep()};
  const Range own = ExpertsOfRank(kPhysical, mesh.ep(), mesh.ep_rank());
  std::map<int, std::vector<int32_t>> previous, next;
  std::vector<ExpertCourier::LayerBatches> layers;
  for (const int layer : {3, 5}) {
    previous[layer] = RandomMap(kPhysical, 7 * seed + layer);
    next[layer] = RandomMap(kPhysical, 7 * seed + layer + 100);
    layers.push_back({layer, PlanTransfers(previous[layer], next[layer], topology).batches});
  }
  // The shards of the ranks of a MoE-TP group differ.
  const auto part = [&](int layer, int32_t expert) {
    return Made(layer + 10 * mesh.moe_tp_rank(), expert);
  };
  courier.Begin(layers, kPhysical, [&](int layer, int local) {
    return part(layer, previous[layer][own.begin + local]);
  });
  std::vector<int64_t> all(comm.tp->size());
  for (int step = 0; courier.active(); ++step) {
    const int64_t mine = courier.batches_done();
    comm.tp->AllGather(&mine, all.data(), sizeof mine);
    if (step == stop_after) return void(courier.Cancel());
    courier.Step(std::ranges::min(all));
  }
  auto arrived = courier.Take();
  for (const int layer : {3, 5}) {
    std::map<int32_t, OwnedExpert>& got = arrived[layer];
    for (int p = own.begin; p < own.end; ++p) {
      const int32_t expert = next[layer][p];
      const auto held = std::span(previous[layer]).subspan(own.begin, own.size());
      if (std::ranges::find(held, expert) != held.end()) continue;
      ASSERT_TRUE(got.contains(expert)) << expert;
      ExpectSame(got.at(expert), part(layer, expert));
      got.erase(expert);
      if (std::ranges::find(next[layer].begin() + p + 1, next[layer].begin() + own.end, expert) !=
          next[layer].begin() + own.end)
        got[expert] = part(layer, expert);  // a later slot holds the expert too
    }
    EXPECT_TRUE(got.empty());
  }
}

constexpr MeshShape kMeshes[] = {{.tp = 2, .ep = 2}, {.tp = 4, .ep = 4}, {.tp = 4, .ep = 2}};

size_t Bytes(const MeshShape& mesh) {
  return RankComm::BytesPerRank(mesh) + ExpertCourier::BytesPerRank(mesh.tp);
}

TEST(ExpertCourier, TransfersEveryExpert) {
  for (const MeshShape& mesh : kMeshes)
    for (const size_t piece : {size_t{3000}, ExpertCourier::kPieceBytes}) {
      SCOPED_TRACE(fmt::format("tp {} ep {} pieces of {}", mesh.tp, mesh.ep, piece));
      RunRankThreads(mesh.tp, Bytes(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), mesh, rank);
        ExpertCourier courier(*comm, piece);
        for (uint32_t seed = 0; seed < 3; ++seed) Move(*comm, courier, seed);
      });
    }
}

TEST(ExpertCourier, RestartsAfterItWasCanceled) {
  const MeshShape mesh{.tp = 4, .ep = 4};
  RunRankThreads(mesh.tp, Bytes(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank);
    ExpertCourier courier(*comm, 3000);
    for (int stop = 0; stop < 6; ++stop) {
      Move(*comm, courier, stop, stop);
      EXPECT_FALSE(courier.active());
      Move(*comm, courier, 50 + stop);
    }
  });
}

TEST(ExpertCourier, RanksOfOtherHostsGetThemToo) {
  const MeshShape mesh{.tp = 4, .ep = 4};
  RunTcpRankThreads(mesh.tp, 2, Bytes(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank);
    ExpertCourier courier(*comm, 3000);
    for (uint32_t seed = 0; seed < 3; ++seed) Move(*comm, courier, seed);
  });
}

}  // namespace
}  // namespace switchyard
