// The recorder's data equals the choices of the layers' routers, in every mode and on all kinds of
// meshes.
#include "eplb/recorder.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "core/testing.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kLayers = 3;  // the first one is dense
constexpr int kExperts = 10, kTopK = 3;

struct File {
  nlohmann::json header;
  std::string data;

  explicit File(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    uint64_t length = 0;
    in.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string text(length, ' ');
    in.read(text.data(), static_cast<std::streamsize>(length));
    header = nlohmann::json::parse(text);
    data.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::vector<int64_t> Shape(const std::string& name) const {
    return header.at(name).at("shape").get<std::vector<int64_t>>();
  }
  template <typename T>
  std::vector<int64_t> Read(const std::string& name) const {
    EXPECT_EQ(header.at(name).at("dtype"), sizeof(T) == 4 ? "I32" : "I64");
    const auto& offsets = header.at(name).at("data_offsets");
    const std::string bytes =
        data.substr(offsets[0], offsets[1].get<size_t>() - offsets[0].get<size_t>());
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
    return {values.begin(), values.end()};
  }
};

struct Setting {
  const char* name;
  MeshShape mesh;
  const char* a2a;
  bool redundant = false, waterfill = false;
};

// Results of a run: the choice of every token, and rank 0's results.
struct Outcome {
  // [pass][layer][group] ids [tokens, top_k], as MoeTokens::routed_experts has them.
  std::vector<std::vector<std::vector<std::vector<int32_t>>>> chosen;
  ExpertDump dump;
  ExpertLoad load;
};

class RecordedRanks {
 public:
  RecordedRanks(Setting setting, ExpertRecorderOptions recorder)
      : setting_(setting), recorder_(recorder) {
    moe_.a2a_backend = setting.a2a;
    moe_.waterfill = setting.waterfill;
    moe_.num_redundant_experts = setting.redundant ? 2 : 0;
    moe_.long_seq_per_round_tokens = 5;  // so that passes have several rounds
    for (uint32_t layer = 0; layer < 2; ++layer)
      layers_.emplace_back(TestLayer::Spec{.hidden = 32,
                                           .intermediate = 32,
                                           .num_experts = kExperts,
                                           .top_k = kTopK,
                                           .shared = setting.waterfill,
                                           .seed = layer + 1});
    if (setting.redundant) {
      // Expert 3 in three slots, the others in reverse order.
      std::vector<int32_t> map = {3, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 3};
      for (TestLayer& layer : layers_) layer.config.placement = ExpertPlacement(kExperts, map);
    }
  }

  using Script =
      std::function<void(ExpertRecorder&, const std::function<void(const TestPass&)>&, Outcome*)>;
  // Runs `script` on every rank and returns rank 0's recorder results.
  Outcome operator()(const Script& script) {
    Outcome all;
    RunMoeRanks(moe_, layers_[0].Shape(64), setting_.mesh, [&](RankComm& comm, ThreadPool& pool) {
      Outcome mine = OnRank(script, comm, pool);
      const std::lock_guard lock(mutex_);
      if (comm.mesh.rank() == 0) {
        all.dump = mine.dump;
        all.load = mine.load;
      } else {
        EXPECT_TRUE(mine.dump.file.empty());
      }
      all.chosen.resize(mine.chosen.size());
      for (size_t p = 0; p < mine.chosen.size(); ++p) {
        all.chosen[p].resize(kLayers);
        for (int layer = 1; layer < kLayers; ++layer) {
          all.chosen[p][layer].resize(setting_.mesh.dp);
          all.chosen[p][layer][comm.mesh.dp_rank()] = mine.chosen[p][layer][0];
        }
      }
    });
    return all;
  }

 private:
  Outcome OnRank(const Script& script, RankComm& comm, ThreadPool& pool) {
    const ExpertRecorderShape shape{.layers = kLayers,
                                    .experts = kExperts,
                                    .top_k = kTopK,
                                    .redundant = moe_.num_redundant_experts,
                                    .shared_dispatched = setting_.waterfill};
    ExpertRecorder recorder(recorder_, shape, comm);
    const auto runtime = MakeCpuMoe(moe_, layers_[0].Shape(64), comm, pool);
    runtime->Observe(&recorder);
    std::vector<MoeLayer> moe;
    for (int i = 0; i < 2; ++i) {
      MoeLayerConfig config = layers_[i].config;
      config.layer = i + 1;
      moe.emplace_back(config, layers_[i].ShareOf(comm.mesh, ScattersTokens(moe_, setting_.mesh)),
                       runtime);
    }
    Outcome mine;
    const auto pass = [&](const TestPass& p) {
      mine.chosen.push_back(OnePass(p, moe, recorder, comm.mesh.dp_rank()));
    };
    script(recorder, pass, &mine);
    return mine;
  }

  // Runs one pass on this rank. Returns the ids that the router chose for its group: [layer][1]
  // [tokens, top_k].
  std::vector<std::vector<std::vector<int32_t>>> OnePass(const TestPass& pass,
                                                         const std::vector<MoeLayer>& moe,
                                                         ExpertRecorder& recorder,
                                                         int group) const {
    const int64_t tokens = pass.tokens[group];
    const std::vector<float> hidden = layers_[0].Hidden(pass.total(), pass.seed);
    std::vector<float> out(tokens * 32);
    std::vector<std::vector<std::vector<int32_t>>> chosen(kLayers);
    recorder.BeginPass(0, tokens);
    for (int i = 0; i < 2; ++i) {
      chosen[i + 1].emplace_back(tokens * kTopK, -7);
      moe[i].Forward(*moe[i].MakeState(), hidden.data() + pass.FirstOf(group) * 32,
                     {pass.tokens, pass.decoding, chosen[i + 1][0].data()}, out.data());
    }
    // If there are two or more tokens, they belong to two requests. The first request has one row.
    std::vector<int32_t> positions(tokens), rows;
    for (int64_t t = 0; t < tokens; ++t) positions[t] = static_cast<int32_t>(100 * group + t);
    if (tokens > 0) rows.push_back(1);
    if (tokens > 1) rows.push_back(static_cast<int32_t>(tokens - 1));
    const std::vector<uint64_t> ids = {uint64_t(10 * group + 1), uint64_t(10 * group + 2)};
    recorder.EndPass(0, {positions, rows, std::span(ids).first(rows.size())});
    return chosen;
  }

  const Setting setting_;
  const ExpertRecorderOptions recorder_;
  MoeOptions moe_;
  std::vector<TestLayer> layers_;
  std::mutex mutex_;
};

// The expected counts [steps, layers, experts] of passes [begin, end).
std::vector<int64_t> Expected(const Outcome& outcome, size_t begin, size_t end) {
  std::vector<int64_t> count((end - begin) * kLayers * kExperts);
  for (size_t p = begin; p < end; ++p)
    for (int layer = 1; layer < kLayers; ++layer)
      for (const auto& group : outcome.chosen[p][layer])
        for (const int32_t id : group) ++count[((p - begin) * kLayers + layer) * kExperts + id];
  return count;
}

const Setting kSettings[] = {
    {"one_rank", {.tp = 1}, "none"},
    {"all_reduce", {.tp = 4, .ep = 2}, "none"},
    {"deepep", {.tp = 4, .ep = 4}, "deepep"},
    {"two_groups", {.tp = 4, .ep = 4, .dp = 2}, "deepep"},
    {"moe_tp", {.tp = 4, .ep = 2, .dp = 4}, "deepep"},
    {"replicas", {.tp = 2, .ep = 2, .dp = 2}, "deepep", true},
    {"waterfill", {.tp = 4, .ep = 4}, "deepep", false, true},
};

// Prompts, decoding, mixed passes, a group without tokens, and fewer tokens than ranks.
std::vector<TestPass> Passes(int dp) {
  std::vector<TestPass> passes = {TestPass::Spread(37, dp, false, 1),
                                  TestPass::Spread(6, dp, true, 2),
                                  TestPass::Spread(1, dp, true, 3)};
  TestPass mixed = TestPass::Spread(21, dp, false, 4);
  for (int g = 0; g < dp; ++g) mixed.decoding[g] = mixed.tokens[g] / 2;
  passes.push_back(mixed);
  return passes;
}

class RecorderModes : public ::testing::TestWithParam<std::tuple<Setting, const char*>> {};

TEST_P(RecorderModes, CountsAreTheRoutersChoice) {
  const auto& [setting, mode] = GetParam();
  const TemporaryDirectory dir;
  RecordedRanks run(setting, {.mode = mode, .dir = dir.path()});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    recorder.Start();
    for (const TestPass& p : Passes(setting.mesh.dp)) pass(p);
    out->dump = recorder.Dump();
  });
  ASSERT_EQ(got.dump.error, "");
  const File file(got.dump.file);
  EXPECT_EQ(file.Shape("logical_count"), (std::vector<int64_t>{4, kLayers, kExperts}));
  const std::vector<int64_t> expected = Expected(got, 0, 4);
  EXPECT_EQ(file.Read<int32_t>("logical_count"), expected);
  EXPECT_EQ(std::accumulate(expected.begin(), expected.end(), int64_t{0}),
            (37 + 6 + 1 + 21) * kTopK * (kLayers - 1));
  EXPECT_EQ(file.Read<int64_t>("forward_pass_id"), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(file.header.at("__metadata__").at("mode"), mode);
  EXPECT_EQ(file.header.contains("rank_logical_count"), std::string(mode) == "per_pass");
  EXPECT_EQ(file.header.contains("topk_ids"), std::string(mode) == "per_token");
  std::vector<int64_t> summed(kLayers * kExperts);
  for (size_t i = 0; i < expected.size(); ++i) summed[i % summed.size()] += expected[i];
  EXPECT_EQ(got.dump.logical_count, summed);
}

INSTANTIATE_TEST_SUITE_P(All, RecorderModes,
                         ::testing::Combine(::testing::ValuesIn(kSettings),
                                            ::testing::Values("stat", "stat_approx", "per_pass",
                                                              "per_token")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param);
                         });

class RecorderOn : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(All, RecorderOn, ::testing::ValuesIn(kSettings),
                         [](const auto& info) { return info.param.name; });

TEST_P(RecorderOn, PerPassHasWhatEachRanksTokensChose) {
  const int world = GetParam().mesh.tp, dp = GetParam().mesh.dp;
  const TemporaryDirectory dir;
  RecordedRanks run(GetParam(), {.mode = "per_pass", .dir = dir.path()});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    recorder.Start();
    pass(TestPass::Spread(37, dp, false, 1));
    out->dump = recorder.Dump();
  });
  const File file(got.dump.file);
  EXPECT_EQ(file.Shape("rank_logical_count"), (std::vector<int64_t>{1, world, kLayers, kExperts}));
  const auto by_rank = file.Read<int32_t>("rank_logical_count");
  std::vector<int64_t> sum(kLayers * kExperts);
  for (int rank = 0; rank < world; ++rank) {
    // A rank's own tokens are an even share of the group's tokens, in the group's order.
    const auto& chosen = got.chosen[0][1][rank / (world / dp)];
    const Range own = EvenPart(std::ssize(chosen) / kTopK, world / dp, rank % (world / dp));
    std::vector<int64_t> expected(kExperts);
    for (int64_t i = own.begin * kTopK; i < own.end * kTopK; ++i) ++expected[chosen[i]];
    const auto begin = by_rank.begin() + (rank * kLayers + 1) * kExperts;
    EXPECT_EQ(std::vector<int64_t>(begin, begin + kExperts), expected) << "rank " << rank;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += by_rank[rank * sum.size() + i];
  }
  EXPECT_EQ(sum, Expected(got, 0, 1));
}

TEST_P(RecorderOn, PerTokenHasEveryTokenOnceInOrder) {
  const int dp = GetParam().mesh.dp;
  const TemporaryDirectory dir;
  RecordedRanks run(GetParam(), {.mode = "per_token", .dir = dir.path()});
  const std::vector<TestPass> passes = Passes(dp);
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    recorder.Start();
    for (const TestPass& p : passes) pass(p);
    out->dump = recorder.Dump();
  });
  std::vector<int64_t> step, positions, ids, topk;
  for (size_t p = 0; p < passes.size(); ++p)
    for (int group = 0; group < dp; ++group)
      for (int64_t t = 0; t < passes[p].tokens[group]; ++t) {
        step.push_back(static_cast<int64_t>(p));
        positions.push_back(100 * group + t);
        ids.push_back(10 * group + (t == 0 ? 1 : 2));
        for (int layer = 0; layer < kLayers; ++layer)
          for (int k = 0; k < kTopK; ++k)
            topk.push_back(layer == 0 ? -1 : got.chosen[p][layer][group][t * kTopK + k]);
      }
  const File file(got.dump.file);
  EXPECT_EQ(file.Shape("topk_ids"), (std::vector<int64_t>{std::ssize(step), kLayers, kTopK}));
  EXPECT_EQ(file.Read<int32_t>("token_step"), step);
  EXPECT_EQ(file.Read<int32_t>("positions"), positions);
  EXPECT_EQ(file.Read<int64_t>("request_ids"), ids);
  EXPECT_EQ(file.Read<int32_t>("topk_ids"), topk);
}

// The load of a rank is the number of top-k slots that are sent to its experts, including replicas
// and dispatched shared experts. It is counted even if recording was not started.
TEST_P(RecorderOn, MetricsHaveTheRanksLoads) {
  const Setting& setting = GetParam();
  const int ranks = setting.mesh.ep;
  RecordedRanks run(setting, {.metrics = true});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    for (const TestPass& p : Passes(setting.mesh.dp)) pass(p);
    EXPECT_FALSE(recorder.recording());
    out->load = recorder.Load();
  });
  const ExpertLoad& load = got.load;
  EXPECT_EQ(load.passes, 4);
  std::vector<int64_t> expected(kLayers * kExperts);
  const std::vector<int64_t> steps = Expected(got, 0, 4);
  for (size_t i = 0; i < steps.size(); ++i) expected[i % expected.size()] += steps[i];
  EXPECT_EQ(load.logical_count, expected);
  ASSERT_THAT(load.rank_count, SizeIs(kLayers * ranks));
  const int64_t rows = (37 + 6 + 1 + 21) * (kTopK + (setting.waterfill ? 1 : 0));
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::span of_layer = std::span(load.rank_count).subspan(layer * ranks, ranks);
    EXPECT_EQ(std::accumulate(of_layer.begin(), of_layer.end(), int64_t{0}), layer == 0 ? 0 : rows);
    if (setting.redundant || setting.waterfill || layer == 0) continue;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range held = ExpertsOfRank(kExperts, ranks, rank);
      EXPECT_EQ(of_layer[rank],
                std::accumulate(expected.begin() + layer * kExperts + held.begin,
                                expected.begin() + layer * kExperts + held.end, int64_t{0}));
    }
  }
  EXPECT_GT(load.balancedness.current, 0.0);
  EXPECT_LE(load.balancedness.last_1000, 1.0);
  if (ranks == 1) {
    EXPECT_DOUBLE_EQ(load.balancedness.last_10, 1.0);
  }
}

TEST(Recorder, KeepsTheLastPassesWhileItRecords) {
  const TemporaryDirectory dir;
  RecordedRanks run({"", {.tp = 2, .ep = 2, .dp = 2}, "deepep"},
                    {.mode = "stat", .buffer_size = 2, .dir = dir.path()});
  const auto pass_of = [](uint32_t seed) { return TestPass::Spread(9, 2, false, seed); };
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    pass(pass_of(1));  // not recorded
    EXPECT_TRUE(recorder.Start());
    for (uint32_t seed = 2; seed < 5; ++seed) pass(pass_of(seed));
    EXPECT_TRUE(recorder.Stop());
    EXPECT_FALSE(recorder.Stop());
    pass(pass_of(5));  // not recorded
    out->dump = recorder.Dump();
  });
  const File file(got.dump.file);
  EXPECT_EQ(file.Read<int64_t>("forward_pass_id"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.Read<int32_t>("logical_count"), Expected(got, 2, 4));
}

TEST(Recorder, CountsAreClearedAtAStartAndAfterADump) {
  const TemporaryDirectory dir;
  RecordedRanks run({"", {.tp = 2, .ep = 2}, "deepep"},
                    {.mode = "per_token", .buffer_size = -1, .dir = dir.path()});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    recorder.Start();
    pass(TestPass::Spread(9, 1, false, 1));
    EXPECT_FALSE(recorder.Start());
    pass(TestPass::Spread(8, 1, false, 2));
    recorder.Dump();
    out->dump = recorder.Dump();
    EXPECT_TRUE(recorder.recording());
  });
  EXPECT_EQ(got.dump.steps, 0);
  EXPECT_EQ(File(got.dump.file).Shape("topk_ids"), (std::vector<int64_t>{0, kLayers, kTopK}));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    const File file(entry.path());
    if (file.Shape("logical_count")[0] == 1) {
      EXPECT_EQ(file.Read<int32_t>("logical_count"), Expected(got, 1, 2));
    }
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST(Recorder, ADumpThatFailsLosesNothing) {
  const TemporaryDirectory dir;
  const std::filesystem::path missing = dir.path() / "later";
  RecordedRanks run({"", {.tp = 2, .ep = 2}, "deepep"}, {.mode = "stat", .dir = missing});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto& pass, Outcome* out) {
    recorder.Start();
    pass(TestPass::Spread(9, 1, false, 1));
    const ExpertDump failed = recorder.Dump();
    EXPECT_EQ(failed.file, "");
    if (!failed.error.empty()) {  // only rank 0 gets the error
      EXPECT_THAT(failed.error, HasSubstr("later/expert_distribution_recorder_"));
      EXPECT_THAT(failed.error, HasSubstr("No such file"));
      std::filesystem::create_directory(missing);
    }
    out->dump = recorder.Dump();
  });
  ASSERT_EQ(got.dump.error, "");
  EXPECT_EQ(File(got.dump.file).Read<int32_t>("logical_count"), Expected(got, 0, 1));
}

// Counts of a pass belong to the experts that were in the slots during the pass.
TEST(Recorder, CountsFollowExpertsThatMove) {
  const TemporaryDirectory dir;
  RecordedRanks run({"", {.tp = 1}, "none"}, {.mode = "stat", .dir = dir.path()});
  const Outcome got = run([&](ExpertRecorder& recorder, const auto&, Outcome* out) {
    std::vector<int32_t> map(kExperts);
    std::iota(map.begin(), map.end(), 0);
    recorder.Start();
    for (int pass = 0; pass < 2; ++pass) {
      recorder.OnPlacement(1, ExpertPlacement(kExperts, map));
      recorder.BeginPass(0, 1);
      recorder.OnRoute(0, 1,
                       {.tokens = 1, .logical = {}, .physical = std::vector<int32_t>{0, 4, -1}});
      recorder.EndPass(0, {});
      std::ranges::reverse(map);
    }
    out->load = recorder.Load();
    out->dump = recorder.Dump();
  });
  std::vector<int64_t> expected(2 * kLayers * kExperts);
  const auto second = expected.begin() + kLayers * kExperts;
  expected[kExperts + 0] = expected[kExperts + 4] = 1;
  second[kExperts + 9] = second[kExperts + 5] = 1;
  EXPECT_EQ(File(got.dump.file).Read<int32_t>("logical_count"), expected);
  for (int i = 0; i < kLayers * kExperts; ++i) expected[i] += second[i];
  expected.resize(kLayers * kExperts);
  EXPECT_EQ(got.load.logical_count, expected);
}

TEST(Recorder, RefusesWhatItCannotDo) {
  EXPECT_THAT(ErrorOf([] { Validate(ExpertRecorderOptions{.mode = "all"}); }),
              HasSubstr("--expert-distribution-recorder-mode all"));
  EXPECT_THAT(ErrorOf([] { Validate(ExpertRecorderOptions{.buffer_size = 0}); }),
              HasSubstr("--expert-distribution-recorder-buffer-size 0"));
  RecordedRanks by_metrics({"", {.tp = 1}, "none"}, {.metrics = true});
  by_metrics([&](ExpertRecorder& recorder, const auto&, Outcome*) {
    EXPECT_THAT(ErrorOf([&] { recorder.Start(); }), HasSubstr("recorder-mode"));
    EXPECT_THAT(ErrorOf([&] { recorder.Dump(); }), HasSubstr("recorder-mode"));
  });
}

TEST(Balancedness, IsTheMeanOverLayersOfMeanOverMax) {
  const std::vector<int64_t> even = {4, 4}, uneven = {4, 0}, both = {4, 4, 6, 2, 0, 0};
  EXPECT_DOUBLE_EQ(BalancednessOf(even, 2), 1.0);
  EXPECT_DOUBLE_EQ(BalancednessOf(uneven, 2), 0.5);
  EXPECT_DOUBLE_EQ(BalancednessOf(both, 2), (1.0 + 4.0 / 6) / 2);  // the third layer has no rows
  EXPECT_DOUBLE_EQ(BalancednessOf({}, 2), 1.0);
}

TEST(Balancedness, WindowsAreMeansOfTheLastPasses) {
  BalancednessWindows windows;
  EXPECT_EQ(windows.Get().last_10, 0.0);
  for (int i = 0; i < 2500; ++i) windows.Add(i % 7 / 7.0);
  const auto mean = [](int passes) {
    double sum = 0;
    for (int i = 2500 - passes; i < 2500; ++i) sum += i % 7 / 7.0;
    return sum / passes;
  };
  const Balancedness got = windows.Get();
  EXPECT_DOUBLE_EQ(got.current, 2499 % 7 / 7.0);
  EXPECT_NEAR(got.last_10, mean(10), 1e-12);
  EXPECT_NEAR(got.last_100, mean(100), 1e-12);
  EXPECT_NEAR(got.last_1000, mean(1000), 1e-12);
  EXPECT_EQ(BalancednessLine(7, {0.5, 0.25, 0.125, 1}, 42),
            "[Expert Balancedness] forward_pass_id=7 current_pass_balancedness=0.500 "
            "last_10_average_balancedness=0.250 last_100_average_balancedness=0.125 "
            "last_1000_average_balancedness=1.000 gpu_physical_count_sum=42");
}

}  // namespace
}  // namespace switchyard
