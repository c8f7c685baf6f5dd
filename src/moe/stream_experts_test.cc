#include "moe/stream_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

TEST(StreamExpertsTest, TheFlagIsAWordOrANumberOfTokens) {
  EXPECT_EQ(ParseStreamExperts("off"), 0);
  EXPECT_EQ(ParseStreamExperts("auto"), -1);
  EXPECT_EQ(ParseStreamExperts("512"), 512);
  for (const char* wrong : {"", "0", "-1", "on", "12x", "1e3", "99999999999999999999"}) {
    try {
      ParseStreamExperts(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("--stream-experts"));
    }
  }
}

TEST(StreamExpertsTest, BothWaysTakeEqualTimesAtTheBreakEven) {
  // Qwen3-30B-A3B in bfloat16, 16 threads, PCIe 4.
  constexpr int kExperts = 128;
  StreamCosts costs{.top_k = 8,
                    .expert_bytes = 3 * 2048.0 * 768 * 2,
                    .flops_of_row = 6 * 2048.0 * 768,
                    .cpu_flops = 1.6e12,
                    .link_bandwidth = 25e9};
  int64_t uniform = 0;
  for (const double exponent : {0.0, 0.8}) {
    for (const int on_gpu : {1, 88, 127}) {
      costs.uploaded = kExperts - on_gpu;
      costs.cpu_share = ShareOfColdExperts(kExperts, on_gpu, exponent);
      const int64_t tokens = BreakEvenTokens(costs);
      const double upload = costs.uploaded * costs.expert_bytes / costs.link_bandwidth;
      const double products = static_cast<double>(tokens) * costs.top_k * costs.cpu_share *
                              costs.flops_of_row / costs.cpu_flops;
      EXPECT_NEAR(upload / products, 1, 0.01);
      if (exponent > 0) {
        EXPECT_GT(tokens, uniform);  // CPUs have the cold experts
      } else if (uniform > 0) {
        EXPECT_NEAR(tokens, uniform, 1);  // of any number
      }
      if (exponent == 0) uniform = tokens;
    }
  }
  StreamCosts faster = costs;
  faster.link_bandwidth *= 2;
  EXPECT_LT(BreakEvenTokens(faster), BreakEvenTokens(costs));
  faster.link_bandwidth = 1e15;
  EXPECT_EQ(BreakEvenTokens(faster), kMinStreamTokens);
  faster.link_bandwidth = 1e-9;
  EXPECT_GT(BreakEvenTokens(faster), int64_t{1} << 40);
}

TEST(StreamExpertsTest, ColdExpertsGetTheRestOfTheRows) {
  EXPECT_DOUBLE_EQ(ShareOfColdExperts(8, 0, 0.8), 1);
  EXPECT_DOUBLE_EQ(ShareOfColdExperts(8, 8, 0.8), 0);
  EXPECT_DOUBLE_EQ(ShareOfColdExperts(8, 2, 0), 0.75);
  EXPECT_DOUBLE_EQ(ShareOfColdExperts(3, 1, 1), (1.0 / 2 + 1.0 / 3) / (1 + 1.0 / 2 + 1.0 / 3));
}

TEST(StreamExpertsTest, LongPassesWithPromptsStream) {
  MoeOptions options;
  const auto streams = [&](std::vector<int64_t> tokens, std::vector<int64_t> decoding) {
    return StreamsExperts(options, tokens, decoding);
  };
  EXPECT_FALSE(streams({1000, 0}, {0, 0}));  // off
  options.stream_tokens = 100;
  EXPECT_TRUE(streams({100, 0}, {0, 0}));
  EXPECT_TRUE(streams({100, 0}, {99, 0}));
  EXPECT_TRUE(streams({60, 40}, {0, 0}));
  EXPECT_FALSE(streams({99, 0}, {0, 0}));
  EXPECT_FALSE(streams({500, 0}, {500, 0}));  // decode only
  // Each round uploads the experts again.
  options.long_seq_per_round_tokens = 150;
  EXPECT_TRUE(streams({150, 0}, {0, 0}));
  EXPECT_FALSE(streams({199, 0}, {0, 0}));  // two rounds
  EXPECT_TRUE(streams({200, 0}, {0, 0}));
  EXPECT_TRUE(streams({310, 0}, {0, 0}));  // three
}

// The rank on a GPU does not take part here: a rank that waited for it would end with an error.
TEST(StreamExpertsTest, RanksOfExpertsHaveNoPartInPassesThatStream) {
  const TestLayer layer({.num_experts = 8});
  MoeOptions options;
  options.a2a_backend = "deepep";
  options.deepep_mode = "normal";
  options.combine_long_seq = true;
  options.host_experts = true;
  options.stream_tokens = 32;
  const MeshShape mesh{.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1};
  const std::vector<TestPass> passes = {{{40, 0}, {0, 0}, 1}, {{40, 0}, {39, 0}, 2}};
  RunMoeRanks(options, ShapeFor(layer, passes), mesh,
              [&](RankComm& comm, ThreadPool& pool) {
                if (comm.mesh.attends()) return;
                const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                                   MakeCpuMoe(options, ShapeFor(layer, passes), comm, pool));
                const auto state = moe.MakeState();
                for (const TestPass& pass : passes) {
                  const MoeTokens tokens = {pass.tokens, pass.decoding};
                  EXPECT_EQ(moe.InputRows(*state, tokens).rows, nullptr);
                  EXPECT_FALSE(moe.StartOneRound(*state, nullptr, tokens, nullptr));
                  moe.Forward(*state, nullptr, tokens, nullptr);
                }
              },
              {std::chrono::seconds(20)});
}

// Every slot leads to exactly one place, which has the slot's expert.
TEST(StreamExpertsTest, EachSlotHasOnePlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int experts = 1 + static_cast<int>(random() % 40), group = StreamGroup(experts);
    std::vector<int32_t> physical(experts);
    std::iota(physical.begin(), physical.end(), 0);
    for (int copies = static_cast<int>(random() % 9); copies > 0; --copies)
      physical.push_back(static_cast<int32_t>(random() % experts));
    std::shuffle(physical.begin(), physical.end(), random);
    const int64_t slots = std::ssize(physical);
    const auto begin = static_cast<int64_t>(random() % slots);
    const Range own{begin, begin + 1 + static_cast<int64_t>(random() % (slots - begin))};
    const StreamPlaces places = PlaceStreams(physical, own, experts);
    const auto held = std::span(physical).subspan(own.begin, own.size());
    for (int32_t e = 0; e < experts; ++e) {
      const bool is_held = std::ranges::count(held, e) > 0;
      EXPECT_EQ(std::ranges::count(places.experts, e), is_held ? 0 : 1);
    }
    EXPECT_TRUE(std::ranges::is_sorted(places.experts));
    const int64_t rows = std::ssize(places.table) / slots;
    EXPECT_EQ(rows, 1 + (experts + group - 1) / group);
    for (int64_t p = 0; p < slots; ++p) {
      int found = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const int32_t at = places.table[row * slots + p];
        if (at < 0) continue;
        ++found;
        const int32_t expert = row == 0 ? held[at] : places.experts[(row - 1) * group + at];
        EXPECT_EQ(expert, physical[p]);
        EXPECT_LT(at, row == 0 ? own.size() : group);
      }
      EXPECT_EQ(found, 1);
    }
  }
}

TEST(StreamExpertsTest, GroupsHaveAtLeastOneExpert) {
  EXPECT_EQ(StreamGroup(1), 1);
  EXPECT_EQ(StreamGroup(12), 3);
  EXPECT_EQ(StreamGroup(256), 8);
}

}  // namespace
}  // namespace switchyard
