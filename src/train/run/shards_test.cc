// ZeRO stage 1: copies of a parameter share its moments. Runs have the bits of runs without it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/temporary_directory.h"
#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using testing::LayoutResult;
using testing::RunLayout;

TEST(Shards, CoverATensorOnceInBlocks) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const int members = 1 + static_cast<int>(random() % 9);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const int64_t count = below(7 * Shards::kBlock);
    const Shards shards{.members = members, .first = static_cast<int>(below(members))};
    int64_t next = 0;
    for (int part = 0; part < members; ++part) {
      const Range shard = shards.Of((shards.first + part) % members, count);
      EXPECT_EQ(shard.begin, next);
      EXPECT_TRUE(shard.begin % Shards::kBlock == 0 || shard.size() == 0);
      next = shard.end;
    }
    EXPECT_EQ(next, count);
  }
}

constexpr int kRanks = 3;

// Tensors of ragged sizes, one of them without gradient, with other gradients on each rank.
struct Copies {
  explicit Copies(int rank) {
    const int64_t sizes[] = {5, 3 * Shards::kBlock + 7, 1, 2 * Shards::kBlock, 40'000, 9, 250'001};
    std::mt19937 values(1), gradients(static_cast<unsigned>(10 + rank));
    std::normal_distribution<float> normal, other;  // they hold numbers back
    for (const int64_t size : sizes) {
      Parameter<float>& p =
          tensors.emplace_back(Parameter<float>{.name = std::to_string(size), .shape = {size}});
      for (int64_t i = 0; i < size; ++i) {
        p.value.push_back(normal(values));
        if (size != 9) p.gradient.push_back(other(gradients));
      }
    }
    for (Parameter<float>& p : tensors) all.push_back(&p);
  }

  std::vector<Parameter<float>> tensors;
  std::vector<Parameter<float>*> all;
};

TEST(Shards, AreSummedUpdatedAndGatheredAsWholeTensorsAre) {
  std::vector<int64_t> blocks(kRanks);
  const MeshShape shape{.tp = kRanks, .ep = kRanks};
  RunRankThreads(kRanks, RankComm::BytesPerRank(shape) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm = RankComm::Create(arena, shape, rank);
                   const GradientGroups groups{.stage = comm->tp.get(), .copies = comm->tp.get()};
                   ThreadPool pool(2);
                   Copies whole(rank), parts(rank);
                   ShardMoments(parts.all, groups);
                   const Catalog wholes(whole.all, comm->tp.get());
                   const Catalog shards(parts.all, comm->tp.get(), nullptr, groups);
                   AdamW a(whole.all, {}), b(parts.all, {});
                   for (const Parameter<float>* p : parts.all)
                     blocks[static_cast<size_t>(rank)] += Shards::Blocks(p->MyShard().size());
                   for (int step = 0; step < 3; ++step) {
                     const Copies next(rank + 10 * step);
                     for (size_t i = 0; i < whole.all.size(); ++i)
                       whole.all[i]->gradient = parts.all[i]->gradient = next.all[i]->gradient;
                     SumGradients(whole.all, groups);
                     SumGradients(parts.all, groups);
                     const double norm = NormOfGradients(wholes, pool).norm;
                     EXPECT_EQ(NormOfGradients(shards, pool).norm, norm);
                     a.Step(0.01, ClipScale(norm, 1), pool);
                     b.Step(0.01, ClipScale(norm, 1), pool);
                     GatherShards(parts.all, groups);
                     for (size_t i = 0; i < whole.all.size(); ++i) {
                       EXPECT_EQ(parts.all[i]->value, whole.all[i]->value) << whole.all[i]->name;
                       EXPECT_EQ(parts.all[i]->gradient, whole.all[i]->gradient)
                           << whole.all[i]->name;
                       if (whole.all[i]->gradient.empty()) continue;
                       EXPECT_EQ(shards.GatherShards(*parts.all[i], b.moments()[i].second),
                                 a.moments()[i].second);
                     }
                   }
                 });
  const auto [least, most] = std::ranges::minmax(blocks);
  EXPECT_LE(most - least, 1);
}

// A NaN is found on the rank that has its shard, and reported on all.
TEST(Shards, ReportWhatIsNotFinite) {
  const MeshShape shape{.tp = kRanks, .ep = kRanks};
  RunRankThreads(kRanks, RankComm::BytesPerRank(shape) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm = RankComm::Create(arena, shape, rank);
                   const GradientGroups groups{.stage = comm->tp.get(), .copies = comm->tp.get()};
                   ThreadPool pool(1);
                   Copies parts(rank);
                   ShardMoments(parts.all, groups);
                   if (rank == 1) parts.all[4]->gradient.back() = INFINITY;
                   SumGradients(parts.all, groups);
                   const Catalog catalog(parts.all, comm->tp.get(), nullptr, groups);
                   EXPECT_EQ(NormOfGradients(catalog, pool).not_finite, "40000");
                 });
}

class ShardedRuns : public ::testing::TestWithParam<const char*> {
 protected:
  ShardedRuns() {
    config_.vocab_size = 1500;  // the embedding has two blocks
  }

  static std::string OptimizerFiles(const fs::path& dir) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(dir))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::ranges::sort(files);
    std::string bytes;
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      bytes += file.filename().string() + std::string(std::istreambuf_iterator<char>(in), {});
    }
    return bytes;
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
  ModelConfig config_ = ParseModelConfig(testing::SmallConfig(GetParam()));
};

TEST_P(ShardedRuns, HaveTheBitsOfOtherRuns) {
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config_.vocab_size, 6);
  const LossOptions losses{.balance = {.sequence = 0.01}, .mtp_layers = 1};
  const bool tied = GetParam() == std::string("qwen3_moe");
  const std::vector<Layout> layouts =
      tied ? std::vector{Layout{.tp = 2, .pp = 2}, Layout{.ep = 2, .dp = 2}}
           : std::vector{Layout{.tp = 2, .ep = 2, .dp = 2}, Layout{.dp = 2, .pp = 2},
                         Layout{.dp = 3}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.ToString());
    const LayoutResult whole = RunLayout(
        config_, batch,
        {.layout = layout, .losses = losses, .steps = 2, .clip = 0.1, .save = dir_ / "whole"});
    RunLayout(config_, batch,
              {.layout = layout,
               .losses = losses,
               .steps = 1,
               .zero = true,
               .clip = 0.1,
               .save = dir_ / "half"});
    const LayoutResult rest = RunLayout(config_, batch,
                                        {.layout = layout,
                                         .losses = losses,
                                         .steps = 1,
                                         .zero = true,
                                         .clip = 0.1,
                                         .resume = dir_ / "half",
                                         .save = dir_ / "shards"});
    EXPECT_EQ(rest.values, whole.values);
    EXPECT_EQ(rest.norms[0], whole.norms[1]);
    EXPECT_EQ(OptimizerFiles(dir_ / "shards"), OptimizerFiles(dir_ / "whole"));
    for (size_t rank = 0; rank < whole.moment_bytes.size(); ++rank)
      EXPECT_LT(rest.moment_bytes[rank], whole.moment_bytes[rank]) << rank;
    fs::remove_all(dir_ / "half");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ShardedRuns, ::testing::Values("qwen3_moe", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace switchyard::train
