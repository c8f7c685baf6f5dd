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
#include "model/weights/safetensors.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

constexpr int32_t kPageSize = 4;

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

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

struct Case {
  std::string fixture;
  int tp = 1, ep = 1;
  std::string backend = "none", mode = "auto";
  DType dtype = DType::kF32;     // of exchanged token rows
  DType kv_dtype = DType::kF32;  // of the cache
  int dp = 1, dense_tp = 0;
  int redundant = 0;  // experts
  std::string location = "trivial";
  std::string activations = "auto";  // --quantize-activations
  bool two_batches = false;          // two-batch overlap
  int64_t round_tokens = 8192;       // capacity of deepep's normal mode
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.fixture << " tp" << c.tp << " dp" << c.dp << " ep" << c.ep << " dense"
             << c.dense_tp << " " << c.backend << " " << c.mode << " " << Name(c.dtype) << " kv "
             << Name(c.kv_dtype) << " redundant " << c.redundant << " rows " << c.activations
             << (c.two_batches ? " two batches" : "") << " round " << c.round_tokens;
}

// A sequence and its schedule: from pass `start` on in chunks of `chunk` rows up to `decode_from`,
// then one row per pass.
struct Text {
  std::vector<int32_t> tokens;
  int chunk = 1 << 20;
  int decode_from = 1 << 20;
  int start = 0;

  int length() const { return static_cast<int>(tokens.size()); }
  int prompt() const { return std::min(length(), decode_from); }
  int passes() const { return start + (prompt() + chunk - 1) / chunk + length() - prompt(); }
  // Rows [begin, end) of a pass.
  std::pair<int, int> Rows(int pass) const {
    const int chunks = (prompt() + chunk - 1) / chunk, i = pass - start;
    if (i < 0 || pass >= passes()) return {0, 0};
    if (i < chunks) return {i * chunk, std::min(prompt(), (i + 1) * chunk)};
    return {prompt() + i - chunks, prompt() + i - chunks + 1};
  }
};
using Group = std::vector<Text>;  // the texts of one attention group

// The outputs for each text.
struct Outcome {
  std::vector<float> logits;            // [T, vocab]
  std::vector<int32_t> routed_experts;  // [T, layers, k]

  bool operator==(const Outcome&) const = default;
};

// One rank's texts on pages in descending order, so that no test passes by chance.
class Sequences {
 public:
  explicit Sequences(const Group& texts) : texts_(texts), pages_(texts.size()) {
    for (const Text& text : texts) num_pages_ += (text.length() + kPageSize - 1) / kPageSize;
    int next = num_pages_;
    for (size_t i = 0; i < texts.size(); ++i)
      for (int p = 0; p * kPageSize < texts[i].length(); ++p) pages_[i].push_back(--next);
  }

  int num_pages() const { return num_pages_; }

  // All rows of a pass, decoding sequences first.
  const ForwardBatch& Batch(int pass) {
    batch_ = {};
    order_.clear();
    for (const bool decoding : {true, false}) {
      for (size_t i = 0; i < texts_.size(); ++i) {
        const auto [begin, end] = texts_[i].Rows(pass);
        if (begin < end && (begin >= texts_[i].prompt()) == decoding) Add(i, begin, end);
      }
      if (decoding) batch_.decode_tokens = batch_.num_tokens();
    }
    batch_.routed_experts = true;
    return batch_;
  }
  ForwardBatch& batch() { return batch_; }

  void Take(std::span<const float> logits, std::span<const int32_t> routed,
            std::vector<Outcome>& all) const {
    const size_t rows = batch_.tokens.size();
    if (rows == 0) return;
    const size_t vocab = logits.size() / rows, width = routed.size() / rows;
    for (size_t s = 0; s < order_.size(); ++s) {
      const auto [first, count, kv_len, pages] = batch_.sequences[s];
      Outcome& out = all[order_[s]];
      const auto part = logits.subspan(first * vocab, count * vocab);
      out.logits.insert(out.logits.end(), part.begin(), part.end());
      const auto ids = routed.subspan(first * width, count * width);
      out.routed_experts.insert(out.routed_experts.end(), ids.begin(), ids.end());
    }
  }

 private:
  void Add(size_t text, int begin, int end) {
    order_.push_back(text);
    batch_.sequences.push_back({.row_begin = static_cast<int32_t>(batch_.num_tokens()),
                                .rows = end - begin,
                                .kv_len = end,
                                .pages = pages_[text].data()});
    for (int i = begin; i < end; ++i) {
      batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens()));
      batch_.tokens.push_back(texts_[text].tokens[i]);
      batch_.positions.push_back(i);
      batch_.slots.push_back(pages_[text][i / kPageSize] * kPageSize + i % kPageSize);
    }
  }

  const Group& texts_;
  std::vector<std::vector<int32_t>> pages_;
  int num_pages_ = 0;
  ForwardBatch batch_;
  std::vector<size_t> order_;
};

// Runs all groups' texts through a model and returns the outputs of each group's first rank, by
// group and text. Checks that the group's other ranks have the same.
std::vector<std::vector<Outcome>> Run(const Case& c, const std::vector<Group>& groups) {
  const ModelConfig config =
      LoadModelConfig(Fixture(c.fixture), {}, {.activations = c.activations});
  ModelOptions options{.dtype = c.dtype, .max_tokens = 64};
  options.moe.a2a_backend = c.backend;
  options.moe.deepep_mode = c.mode;
  options.moe.num_redundant_experts = c.redundant;
  options.moe.init_expert_location = c.location;
  options.moe.long_seq_per_round_tokens = c.round_tokens;
  options.two_batch_overlap = c.two_batches;
  const MeshShape shape{.tp = c.tp, .ep = c.ep, .dp = c.dp, .dense_tp = c.dense_tp};
  int passes = 0;
  for (const Group& group : groups)
    for (const Text& text : group) passes = std::max(passes, text.passes());
  std::vector<std::vector<Outcome>> by_rank(c.tp);
  RunRankThreads(c.tp, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   Model model(Fixture(c.fixture), config, options, *comm, pool);
                   std::vector<Sequences> all(groups.begin(), groups.end());
                   Sequences& mine = all[comm->mesh.dp_rank()];
                   KvStorage kv(config, comm->mesh, mine.num_pages(), kPageSize, c.kv_dtype);
                   by_rank[rank].resize(groups[comm->mesh.dp_rank()].size());
                   for (int pass = 0; pass < passes; ++pass) {
                     std::vector<int64_t> tokens, decoding;
                     for (Sequences& group : all) {
                       tokens.push_back(group.Batch(pass).num_tokens());
                       decoding.push_back(group.batch().decode_tokens);
                     }
                     mine.batch().group_tokens = mine.batch().group_logit_rows = tokens;
                     mine.batch().group_decode_tokens = decoding;
                     const auto logits = model.Forward(mine.batch(), kv);
                     mine.Take(logits, model.routed_experts(), by_rank[rank]);
                   }
                 });
  std::vector<std::vector<Outcome>> by_group;
  for (int rank = 0; rank < c.tp; ++rank) {
    if (rank % (c.tp / c.dp) == 0) by_group.push_back(by_rank[rank]);
    EXPECT_EQ(by_group.back(), by_rank[rank]) << "rank " << rank << " differs";
  }
  return by_group;
}

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

class ModelTest : public testing::TestWithParam<Case> {};

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
    // Steps of 1 / 127 of a row's largest value, four times those of bfloat16 at large values.
    EXPECT_LT(worst, 4 * 5e-2);
    EXPECT_LT(total / count, 4 * 5e-3);
  } else if (c.kv_dtype == DType::kF8E4M3) {
    // Four bits less than bfloat16: sixteen times its mean. The worst case is a token whose routing
    // changed.
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
  // Rounded keys change the routing of some of these random models; the others stay within
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

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelTest, testing::ValuesIn(Cases()));

// Chunks of any size, including decode, give the same bits. Prefix reuse and retraction rely
// on it.
TEST(ModelTest, LogitsDoNotDependOnChunks) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
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

std::vector<int32_t> Ids(int length, int first) {
  std::vector<int32_t> ids(length);
  for (int i = 0; i < length; ++i) ids[i] = (first + 37 * i) % 500;
  return ids;
}

// Groups of unequal batches, an empty one, prompts and decoding in one pass, and passes in which
// a group has no rows.
std::vector<Group> Groups(int dp) {
  std::vector<Group> groups(dp);
  for (int g = 0; g < dp; ++g) {
    if (g % 4 == 2) continue;
    for (int i = 0; i <= g % 3; ++i)
      groups[g].push_back({.tokens = Ids(9 + 5 * i + g, 11 * g + i),
                           .chunk = 7,
                           .decode_from = 5 + 4 * i,
                           .start = i + g % 2});
  }
  return groups;
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
  SCOPED_TRACE(testing::Message() << c);
  const std::vector<Group> groups = Groups(c.dp);
  const auto outcomes = Run(c, groups);
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].size(); ++i)
      EXPECT_EQ(outcomes[g][i], Alone(c, groups[g][i])) << "group " << g << " text " << i;
}

// Groups with several texts each, one of them with a single row at times.
std::vector<Group> ManyTexts(int dp) {
  std::vector<Group> groups(dp);
  for (int g = 0; g < dp; ++g)
    for (int i = 0; i < 3 - g % 2; ++i)
      groups[g].push_back({.tokens = Ids(8 + 3 * i + g, 13 * g + i),
                           .chunk = 5 + i,
                           .decode_from = 4 + 3 * i,
                           .start = i / 2});
  return groups;
}

// Backends that exchange rows, by name and mode.
std::vector<std::pair<std::string, std::string>> RowBackends() {
  std::vector<std::pair<std::string, std::string>> found = {
      {"deepep", "normal"}, {"deepep", "low_latency"}, {"deepep", "auto"}};
  const MoeBackends backends = BuiltinMoeBackends();
  for (const auto& [name, backend] : backends.dispatchers.all())
    if (name != "none" && name != "deepep") found.emplace_back(name, "auto");
  for (const auto& [name, backend] : backends.fused.all()) found.emplace_back(name, "auto");
  return found;
}

// Each rank has its own batch and its own share of the experts: from 1 rank to 8.
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
}

// Rows of the placement file: experts in a different order in each layer, and replicas of some.
std::string PermutedPlacement(const std::string& fixture, int redundant) {
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
  std::string path = testing::TempDir() + "/switchyard_placement.json";
  std::ofstream(path) << "{\"physical_to_logical_map\": [" << rows << "]}";
  return path;
}

TEST(DpAttention, LogitsHaveTheSameBitsWhereverExpertsSit) {
  for (const char* fixture : {"qwen3_moe", "gpt_oss"}) {
    for (const int redundant : {0, 4}) {
      ExpectSameBits({.fixture = fixture,
                      .tp = 4,
                      .ep = 4,
                      .backend = "deepep",
                      .dp = 4,
                      .redundant = redundant,
                      .location = PermutedPlacement(fixture, redundant)});
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
  ExpectSameBits({.fixture = "qwen3_moe",
                  .tp = 4,
                  .ep = 4,
                  .backend = "deepep",
                  .dp = 4,
                  .redundant = 4,
                  .location = PermutedPlacement("qwen3_moe", 4),
                  .activations = "always"});
}

void ExpectClose(const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
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

void ExpectNoBitChangesInTwoBatches(Case c) {
  SCOPED_TRACE(testing::Message() << c);
  for (const auto& groups : {ManyTexts(c.dp), Groups(c.dp)}) {
    c.two_batches = false;
    const auto want = Run(c, groups);
    c.two_batches = true;
    EXPECT_EQ(Run(c, groups), want);
  }
}

// Prompts, decoding and mixed batches, split between texts and within one; rounds; groups with one
// row or none.
TEST(ModelTest, TwoBatchOverlapChangesNoBit) {
  std::vector<Case> cases;
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss", "qwen2_moe", "llama"}) {
    cases.push_back({name, 2, 2, "none"});
    cases.push_back({name, 4, 2, "deepep", "auto"});
  }
  for (const auto& [backend, mode] : RowBackends()) {
    cases.push_back({"deepseek_v3", 2, 2, backend, mode});
    cases.push_back({.fixture = "deepseek_v3",
                     .tp = 4,
                     .ep = 4,
                     .backend = backend,
                     .mode = mode,
                     .dtype = DType::kBF16,
                     .dp = 2,
                     .dense_tp = 1});
    cases.push_back({.fixture = "qwen3_moe",
                     .tp = 4,
                     .ep = 2,
                     .backend = backend,
                     .mode = mode,
                     .dp = 4,
                     .round_tokens = 3});
  }
  for (const Case& c : cases) ExpectNoBitChangesInTwoBatches(c);
}

}  // namespace
}  // namespace switchyard
