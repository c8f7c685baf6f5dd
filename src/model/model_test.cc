// Compares the decoder with the reference checkpoints: logits at every position, several layouts.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "model/test_layouts.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

// The reference outputs stored with a checkpoint.
class Reference {
 public:
  explicit Reference(const std::string& fixture) {
    const std::filesystem::path path = Fixture(fixture) / "reference.safetensors";
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    entries_ = ParseSafetensorsHeader(bytes_, bytes_.size(), path.string());
  }
  Tensor Get(const std::string& name) const {
    const TensorEntry& e = entries_.at(name);
    return Tensor::View(bytes_.data() + e.begin, e.dtype, e.shape);
  }

 private:
  std::vector<uint8_t> bytes_;
  TensorEntries entries_;
};

// Logits of one sequence in chunks of `chunk` rows.
std::vector<float> Logits(const Case& c, const std::vector<int32_t>& tokens, int chunk) {
  return Run(c,
             {{{.tokens = tokens, .chunk = chunk, .decode_from = chunk == 1 ? 0 : 1 << 20}}})[0][0]
      .logits;
}

double LogProb(std::span<const float> logits, int token) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return logits[token] - most - std::log(sum);
}

class ModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(ModelTest, LogProbsAreThoseOfTransformers) {
  const Case& c = GetParam();
  const Reference reference(c.fixture);
  double worst = 0, total = 0;
  int64_t count = 0;
  for (int i = 0; i < 4; ++i) {
    const Tensor prompt = reference.Get("prompt." + std::to_string(i));
    const Tensor expected = reference.Get("logits." + std::to_string(i));
    const auto ids = prompt.span<int64_t>();
    const std::vector<int32_t> tokens(ids.begin(), ids.end());
    const int64_t vocab = expected.dim(1);
    for (int chunk : {64, 3, 1}) {
      const std::vector<float> logits = Logits(c, tokens, chunk);
      ASSERT_EQ(logits.size(), tokens.size() * vocab);
      for (size_t t = 0; t + 1 < tokens.size(); ++t) {
        const double want =
            LogProb(expected.span<float>().subspan(t * vocab, vocab), tokens[t + 1]);
        const double got = LogProb(std::span(logits).subspan(t * vocab, vocab), tokens[t + 1]);
        worst = std::max(worst, std::abs(want - got));
        total += std::abs(want - got);
        ++count;
      }
    }
  }
  if (c.dtype == DType::kF32 && c.kv_dtype == DType::kF32) {
    EXPECT_LT(worst, 2e-4);
  } else if (c.kv_dtype == DType::kI8) {
    // The step of an int8 cache is 1 / 127 of a row's largest value: at large values, four times
    // the step of bfloat16.
    EXPECT_LT(worst, 4 * 5e-2);
    EXPECT_LT(total / count, 4 * 5e-3);
  } else if (c.kv_dtype == DType::kF8E4M3) {
    // e4m3 has four bits less than bfloat16, so the bound of the mean is sixteen times as large.
    // The worst difference has no bound, since the routing of a token may change.
    EXPECT_LT(total / count, 16 * 5e-3);
  } else {
    EXPECT_LT(worst, 5e-2);
    EXPECT_LT(total / count, 5e-3);
  }
}

std::vector<Case> Cases() {
  const std::vector<std::string> names = {
      "mixtral",         "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
      "deepseek_v3_fp8", "gpt_oss",   "glm4_moe",  "llama", "qwen3"};
  std::vector<Case> cases;
  for (const std::string& name : names) {
    cases.push_back({name, 1, 1});
    cases.push_back({name, 2, 1, "deepep", "normal"});
    cases.push_back({name, 2, 2, "none"});
    cases.push_back({name, 4, 2, "deepep", "low_latency"});
    cases.push_back({name, 4, 4, "deepep", "auto"});
    cases.push_back({name, 2, 2, "deepep", "auto", DType::kBF16});
  }
  // Rounded keys change the routing of some of these random models. The models below stay within
  // the same bounds.
  for (const char* name : {"qwen3", "deepseek_v3_fp8"}) {
    cases.push_back({name, 2, 2, "none", "auto", DType::kF32, DType::kBF16});
  }
  for (const DType kv_dtype : {DType::kF8E4M3, DType::kI8}) {
    for (const char* name : {"qwen3", "deepseek_v3_fp8"}) {
      cases.push_back({name, 2, 2, "none", "auto", DType::kF32, kv_dtype});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelTest, ::testing::ValuesIn(Cases()));

// Chunks of any size, including decode, give the same bits. Prefix reuse and retraction rely
// on it.
TEST(ModelTest, LogitsDoNotDependOnChunks) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss", kMixedLayers}) {
    for (const DType kv_dtype : {DType::kF32, DType::kF8E4M3, DType::kI8}) {
      std::vector<int32_t> tokens(40);
      std::iota(tokens.begin(), tokens.end(), 7);
      const Case c = {.fixture = name, .kv_dtype = kv_dtype};
      const std::vector<float> whole = Logits(c, tokens, 64);
      EXPECT_EQ(whole, Logits(c, tokens, 1)) << c;
      EXPECT_EQ(whole, Logits(c, tokens, 7)) << c;
    }
  }
}

// The outputs of one rank that runs a text alone.
const Outcome& Alone(const Case& c, const Text& text) {
  static std::map<std::tuple<std::string, std::string, std::vector<int32_t>>, Outcome> known;
  Outcome& outcome = known[{c.fixture, c.activations, text.tokens}];
  if (outcome.logits.empty()) {
    outcome = Run({.fixture = c.fixture, .activations = c.activations},
                  {{{.tokens = text.tokens}}})[0][0];
  }
  return outcome;
}

void ExpectSameBits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  const std::vector<Group> groups = Groups(c.dp);
  const auto outcomes = Run(c, groups);
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].size(); ++i)
      EXPECT_EQ(outcomes[g][i], Alone(c, groups[g][i])) << "group " << g << " text " << i;
}

// Runs on 1 to 8 ranks, each with its own batch and its own share of the experts.
TEST(DpAttention, LogitsHaveTheSameBitsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const auto& [backend, mode] : RowBackends()) {
      ExpectSameBits({.fixture = "qwen3_moe",
                      .tp = ranks,
                      .ep = ranks,
                      .backend = backend,
                      .mode = mode,
                      .dp = ranks});
    }
    ExpectSameBits({.fixture = "deepseek_v3",  // with dense layers and a shared expert
                    .tp = ranks,
                    .ep = ranks,
                    .backend = "deepep",
                    .dp = ranks,
                    .dense_tp = 1});
  }
  ExpectSameBits(
      {.fixture = kMixedLayers, .tp = 2, .ep = 2, .backend = "deepep", .dp = 2, .dense_tp = 1});
}

// Writes a placement file: experts in a different order in each layer, and replicas of some.
std::string PermutedPlacement(const std::filesystem::path& folder, const std::string& fixture,
                              int redundant) {
  const ModelConfig config = LoadModelConfig(Fixture(fixture));
  const int experts = config.moe->router.num_experts;
  std::string rows;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    std::string row;
    for (int i = 0; i < experts + redundant; ++i) {
      const int64_t expert =
          i < experts ? (5 * i + 3 + layer) % experts : (i * 3 + layer) % experts;
      row += (row.empty() ? "" : ", ") + std::to_string(expert);
    }
    rows += (rows.empty() ? "[" : ", [") + row + "]";
  }
  const std::filesystem::path path = folder / "placement.json";
  std::ofstream(path) << "{\"physical_to_logical_map\": [" << rows << "]}";
  return path.string();
}

TEST(DpAttention, LogitsHaveTheSameBitsWhereverExpertsSit) {
  const TemporaryDirectory directory;
  for (const char* fixture : {"qwen3_moe", "gpt_oss"}) {
    for (const int redundant : {0, 4}) {
      ExpectSameBits({.fixture = fixture,
                      .tp = 4,
                      .ep = 4,
                      .backend = "deepep",
                      .dp = 4,
                      .redundant = redundant,
                      .location = PermutedPlacement(directory.path(), fixture, redundant)});
    }
    ExpectSameBits(
        {.fixture = fixture, .tp = 4, .ep = 4, .backend = "deepep", .dp = 4, .redundant = 2});
  }
}

// bfloat16 weights with rows rounded to bfloat16.
TEST(DpAttention, RowsInBFloat16HaveTheSameBitsOnAnyRanksWhereverExpertsSit) {
  for (const int ranks : {1, 2, 4}) {
    ExpectSameBits({.fixture = "qwen3_moe",
                    .tp = ranks,
                    .ep = ranks,
                    .backend = "deepep",
                    .dp = ranks,
                    .activations = "always"});
  }
  const TemporaryDirectory directory;
  ExpectSameBits({.fixture = "qwen3_moe",
                  .tp = 4,
                  .ep = 4,
                  .backend = "deepep",
                  .dp = 4,
                  .redundant = 4,
                  .location = PermutedPlacement(directory.path(), "qwen3_moe", 4),
                  .activations = "always"});
}

void ExpectClose(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  const std::vector<Group> groups = Groups(c.dp);
  const auto outcomes = Run(c, groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].size(); ++i) {
      const Outcome &got = outcomes[g][i], &want = Alone(c, groups[g][i]);
      ASSERT_EQ(got.logits.size(), want.logits.size());
      for (size_t n = 0; n < want.logits.size(); ++n)
        ASSERT_NEAR(got.logits[n], want.logits[n], 5e-4) << "group " << g << " text " << i;
      EXPECT_EQ(got.routed_experts, want.routed_experts);
    }
  }
}

// Groups of several ranks have another reduction order than one rank.
TEST(DpAttention, GroupsOfSeveralRanksComputeWhatOneRankDoes) {
  for (const int dense_tp : {0, 1}) {
    for (const char* fixture : {"deepseek_v3", "qwen2_moe", "olmoe", "llama"}) {
      for (const int ep : {2, 4}) {
        ExpectClose({.fixture = fixture,
                     .tp = 4,
                     .ep = ep,
                     .backend = ep == 2 ? "none" : "deepep",
                     .dp = 2,
                     .dense_tp = dense_tp});
      }
    }
  }
  ExpectClose({.fixture = "glm4_moe", .tp = 4, .ep = 1, .backend = "deepep", .dp = 4});
  ExpectClose({.fixture = "deepseek_v2", .tp = 4, .ep = 2, .dp = 1, .dense_tp = 1});
}

TEST(DpAttention, RoutedExpertsNameThoseOfTheModel) {
  const Outcome& outcome = Alone({"deepseek_v3"}, {.tokens = Ids(12, 5)});
  const ModelConfig config = LoadModelConfig(Fixture("deepseek_v3"));
  const size_t k = config.moe->router.top_k, layers = config.layers.size();
  ASSERT_EQ(outcome.routed_experts.size(), 12 * layers * k);
  for (size_t n = 0; n < outcome.routed_experts.size(); ++n) {
    const int32_t expert = outcome.routed_experts[n];
    if (config.layers[n / k % layers].moe) {
      EXPECT_GE(expert, 0);
      EXPECT_LT(expert, config.moe->router.num_experts);
    } else {
      EXPECT_EQ(expert, -1);
    }
  }
}

}  // namespace
}  // namespace switchyard
