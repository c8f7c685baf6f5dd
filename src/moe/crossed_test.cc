// Pairwise test of the MoE path against the reference. A few dozen layers cover every pair of
// choices of dispatcher, mode, runner, format, mesh, routing pattern, combine rows and so on.
#include <array>
#include <cstring>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "moe/dispatchers/test_processes.h"
#include "moe/placement/covering_design.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

enum class Pattern { kRandom, kHotExpert, kNoExperts, kEmptyRanks, kMoreExpertsThanTokens };
enum class Step { kPrompt, kDecode, kMixed };
enum class Rows { kF32, kBF16, kF16, kFp8 };
enum class Placing { kTrivial, kShuffled, kRedundant };
enum class Shared { kNone, kBeside, kDispatched };

struct Format {
  WeightFormat weights;
  ActivationFormat activation = ActivationFormat::kNone;
};

const std::vector<Format> kFormats = {
    {WeightFormat::kF32},
    {WeightFormat::kBF16},
    {WeightFormat::kF16},
    {WeightFormat::kFp8Block},
    {WeightFormat::kFp8Block, ActivationFormat::kFp8Group},
    {WeightFormat::kFp8Channel, ActivationFormat::kFp8Token},
    {WeightFormat::kInt8Channel},
    {WeightFormat::kInt8Channel, ActivationFormat::kInt8Token},
    {WeightFormat::kInt4Group},
    {WeightFormat::kInt4Group, ActivationFormat::kFp8Tensor},
    {WeightFormat::kMxfp4},
    {WeightFormat::kNvfp4},
};
const std::vector<MeshShape> kMeshes = {
    {.tp = 4, .ep = 4},          {.tp = 4, .ep = 2},          {.tp = 4, .ep = 1, .dp = 4},
    {.tp = 4, .ep = 2, .dp = 2}, {.tp = 4, .ep = 4, .dp = 4}, {.tp = 6, .ep = 2, .dp = 3},
    {.tp = 8, .ep = 8},          {.tp = 8, .ep = 4, .dp = 2}, {.tp = 8, .ep = 2, .dp = 4},
    {.tp = 8, .ep = 8, .dp = 8},
};
const std::vector<std::string> kRunners = {"grouped_mlp", "masked_mlp"};

// One row of the covering design: the choices for one layer.
struct Case {
  A2aChoice choice;
  std::string runner;
  Format format;
  MeshShape mesh;
  Pattern pattern;
  Step step;
  Rows rows;
  Placing placing;
  Shared shared;
  bool processes;
  bool by_rank;  // --moe-combine-rows rank
};

std::vector<int> Sizes() {
  return {static_cast<int>(AllA2aChoices().size()),
          static_cast<int>(kRunners.size()),
          static_cast<int>(kFormats.size()),
          static_cast<int>(kMeshes.size()),
          5,   // Pattern
          3,   // Step
          4,   // Rows
          3,   // Placing
          3,   // Shared
          2,   // threads, processes
          2};  // --moe-combine-rows slot, rank
}

std::vector<Case> AllCases() {
  const std::vector<A2aChoice> choices = AllA2aChoices();
  const MoeBackends backends = BuiltinMoeBackends();
  std::vector<Case> cases;
  for (const CoveringDesign::Row& r : CoveringDesign(Sizes()).rows()) {
    Case c{choices[r[0]],
           kRunners[r[1]],
           kFormats[r[2]],
           kMeshes[r[3]],
           static_cast<Pattern>(r[4]),
           static_cast<Step>(r[5]),
           static_cast<Rows>(r[6]),
           static_cast<Placing>(r[7]),
           static_cast<Shared>(r[8]),
           r[9] == 1,
           r[10] == 1};
    const DispatcherBackend* dispatcher = backends.dispatchers.FindIf(c.choice.a2a);
    c.by_rank = c.by_rank && dispatcher && dispatcher->combines_by_rank;
    if (backends.fused.FindIf(c.choice.a2a)) c.runner = "auto";
    const bool sends_whole = c.mesh.ep == c.mesh.tp && (c.choice.a2a != "none" || c.mesh.dp > 1);
    if (c.shared == Shared::kDispatched && !sends_whole) c.shared = Shared::kBeside;
    cases.push_back(c);
  }
  return cases;
}

TestLayer LayerOf(const Case& c) {
  TestLayer layer({.format = c.format.weights,
                   .activation = c.format.activation,
                   .hidden = 96,
                   // Slices of this size consist of whole blocks and groups of the weight formats.
                   .intermediate = 384,
                   .num_experts = c.pattern == Pattern::kMoreExpertsThanTokens ? 24 : 10,
                   .top_k = 3,
                   .shared = c.shared != Shared::kNone,
                   .hot_expert = c.pattern == Pattern::kHotExpert ? 6 : -1,
                   .no_experts = c.pattern == Pattern::kNoExperts});
  const int experts = layer.spec.num_experts;
  if (c.placing != Placing::kTrivial) {
    kernels::Random random(9);
    std::vector<int32_t> map = random.Shuffled(experts);
    if (c.placing == Placing::kRedundant) map.insert(map.begin() + 3, {6, 0});
    layer.config.placement = ExpertPlacement(experts, map);
  }
  return layer;
}

MoeOptions OptionsOf(const Case& c) {
  MoeOptions options{.a2a_backend = c.choice.a2a,
                     .deepep_mode = c.choice.mode,
                     .runner_backend = c.runner,
                     .max_dispatch_tokens_per_rank = 4};
  options.combine_rows = c.by_rank ? "rank" : "slot";
  options.waterfill = c.shared == Shared::kDispatched;
  options.num_redundant_experts = c.placing == Placing::kRedundant ? 2 : 0;
  options.dispatcher_output_dtype = c.rows == Rows::kFp8 ? "fp8" : "bf16";
  constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kBF16};
  options.row_dtype = kDTypes[static_cast<size_t>(c.rows)];
  return options;
}

std::vector<TestPass> PassesOf(const Case& c) {
  const std::vector<int64_t> totals = c.pattern == Pattern::kEmptyRanks ? std::vector<int64_t>{2, 1}
                                      : c.pattern == Pattern::kMoreExpertsThanTokens
                                          ? std::vector<int64_t>{7}
                                          : std::vector<int64_t>{21, 3};
  std::vector<TestPass> passes = SpreadPasses(totals, c.mesh.dp, c.step == Step::kDecode);
  if (c.step == Step::kMixed)
    for (TestPass& pass : passes)
      for (int g = 0; g < c.mesh.dp; ++g)
        pass.decoding[g] = std::min(pass.tokens[g], (pass.tokens[g] + g) / 2);
  return passes;
}

// Tolerance of the comparison. A value near the midpoint between two representable values may be
// rounded either way. Slices of an expert are rounded separately, and each slice has its own scales
// for quantized activations.
double ToleranceOf(const Case& c) {
  const bool sliced = c.mesh.tp != c.mesh.ep;
  if (c.format.activation != ActivationFormat::kNone) return sliced ? 5e-2 : 2e-2;
  return c.rows == Rows::kF32 ? 1e-5 : c.rows == Rows::kF16 ? 2e-3 : 1e-2;
}

// As RunPasses, but with ranks as processes.
std::vector<float> RunPassesInProcesses(const TestLayer& layer, const MoeOptions& options,
                                        const MeshShape& mesh,
                                        const std::vector<TestPass>& passes) {
  const size_t bytes =
      RankComm::BytesPerRank(mesh) + MoeSymmetricBytes(options, ShapeFor(layer, passes), mesh);
  TestProcesses ranks(mesh.tp, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank, {std::chrono::seconds(60)});
    ThreadPool pool(1);
    const std::vector<float> out = RunPassesOnRank(layer, options, passes, *comm, pool);
    return "done" +
           std::string(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float));
  });
  const int attn_tp = mesh.tp / mesh.dp;
  std::vector<std::vector<float>> groups;
  for (int rank = 0; rank < mesh.tp; ++rank) {
    const std::string said = ranks.Wait(rank);
    if (!said.starts_with("done")) {
      ADD_FAILURE() << "rank " << rank << ": " << said;
      return {};
    }
    std::vector<float> out((said.size() - 4) / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), said.data() + 4, out.size() * sizeof(float));
    if (rank % attn_tp == 0) groups.push_back(out);
    EXPECT_TRUE(SameBits(groups.back(), out)) << "rank " << rank;
  }
  return JoinGroups(passes, layer.spec.hidden, groups);
}

TEST(CrossedTest, EveryPairOfChoicesMeets) {
  const std::vector<int> sizes = Sizes();
  const std::vector<CoveringDesign::Row> rows = CoveringDesign(sizes).rows();
  for (size_t f = 0; f < sizes.size(); ++f) {
    for (size_t g = f + 1; g < sizes.size(); ++g) {
      std::map<std::pair<int, int>, int> met;
      for (const CoveringDesign::Row& row : rows) {
        ASSERT_GE(row[f], 0);
        ASSERT_LT(row[f], sizes[f]);
        ++met[{row[f], row[g]}];
      }
      EXPECT_EQ(met.size(), static_cast<size_t>(sizes[f] * sizes[g])) << f << " and " << g;
    }
  }
  EXPECT_LT(rows.size(), 300u);  // far fewer than the full product
  EXPECT_EQ(CoveringDesign(sizes).rows(), rows);
}

class CrossedTest : public ::testing::TestWithParam<Case> {};

TEST_P(CrossedTest, MatchesTheReference) {
  const Case& c = GetParam();
  const TestLayer layer = LayerOf(c);
  const MoeOptions options = OptionsOf(c);
  const std::vector<TestPass> passes = PassesOf(c);
  const std::vector<float> got = c.processes ? RunPassesInProcesses(layer, options, c.mesh, passes)
                                             : RunPasses(layer, options, c.mesh, passes);
  const double error = RelativeError(got, ReferencePasses(layer, options, passes));
  EXPECT_LT(error, ToleranceOf(c));
  RecordProperty("error", fmt::format("{:.2e}", error));
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = fmt::format(
      "{}_{}_{}_{}_{}_tp{}_ep{}_dp{}_pattern{}_step{}_rows{}_placing{}_shared{}_{}{}", info.index,
      c.choice.Describe(), c.runner, Name(c.format.weights), Name(c.format.activation), c.mesh.tp,
      c.mesh.ep, c.mesh.dp, static_cast<int>(c.pattern), static_cast<int>(c.step),
      static_cast<int>(c.rows), static_cast<int>(c.placing), static_cast<int>(c.shared),
      c.processes ? "processes" : "threads", c.by_rank ? "_by_rank" : "");
  std::ranges::replace_if(
      name, [](unsigned char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, CrossedTest, ::testing::ValuesIn(AllCases()), NameOf);

}  // namespace
}  // namespace switchyard
