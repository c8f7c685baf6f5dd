// The decoder against the reference checkpoints: logits at every position, on several layouts.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

constexpr int32_t kPageSize = 4;

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

// The reference outputs beside a checkpoint.
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

// A batch of one sequence's rows [begin, end), on pages in descending order so that no test passes
// by luck.
struct OneSequence {
  std::vector<int32_t> pages;
  ForwardBatch batch;

  OneSequence(const std::vector<int32_t>& tokens, int begin, int end, int num_pages) {
    for (int p = num_pages - 1; p >= 0; --p) pages.push_back(p);
    for (int i = begin; i < end; ++i) {
      batch.tokens.push_back(tokens[i]);
      batch.positions.push_back(i);
      batch.slots.push_back(pages[i / kPageSize] * kPageSize + i % kPageSize);
      batch.logit_rows.push_back(i - begin);
    }
    batch.sequences = {{.row_begin = 0, .rows = end - begin, .kv_len = end, .pages = pages.data()}};
    batch.decode = end - begin == 1;
  }
};

struct Case {
  std::string fixture;
  int tp = 1, ep = 1;
  std::string backend = "none", mode = "auto";
  DType dtype = DType::kF32;     // of token rows in flight
  DType kv_dtype = DType::kF32;  // of the cache
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.fixture << " tp" << c.tp << " ep" << c.ep << " " << c.backend << " " << c.mode
             << " " << Name(c.dtype) << " kv " << Name(c.kv_dtype);
}

// Logits of `tokens` in chunks of `chunk` rows, from rank 0; checks that every rank has the same.
std::vector<float> Logits(const Case& c, const std::vector<int32_t>& tokens, int chunk) {
  const ModelConfig config = LoadModelConfig(Fixture(c.fixture));
  ModelOptions options{.dtype = c.dtype, .max_tokens = 64};
  options.moe.a2a_backend = c.backend;
  options.moe.deepep_mode = c.mode;
  const MeshShape shape{c.tp, c.ep};
  std::vector<std::vector<float>> by_rank(c.tp);
  RunRankThreads(c.tp, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(arena, shape, rank);
                   Model model(Fixture(c.fixture), config, options, *comm, pool);
                   const int length = static_cast<int>(tokens.size());
                   const int num_pages = (length + kPageSize - 1) / kPageSize;
                   KvStorage kv(config, comm->mesh, num_pages, kPageSize, c.kv_dtype);
                   for (int begin = 0; begin < length; begin += chunk) {
                     const OneSequence part(tokens, begin, std::min(length, begin + chunk),
                                            num_pages);
                     const auto logits = model.Forward(part.batch, kv);
                     by_rank[rank].insert(by_rank[rank].end(), logits.begin(), logits.end());
                   }
                 });
  for (int r = 1; r < c.tp; ++r) EXPECT_EQ(by_rank[0], by_rank[r]) << "rank " << r << " differs";
  return by_rank[0];
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
  // Rounded keys turn the routing of some of these random models; of the others they stay within
  // the same bounds.
  for (const char* name : {"qwen3", "deepseek_v3_fp8"}) {
    cases.push_back({name, 2, 2, "none", "auto", DType::kF32, DType::kBF16});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelTest, testing::ValuesIn(Cases()));

// Chunks of any size, decode included, leave the same bits: what prefix reuse and retraction rely
// on.
TEST(ModelTest, LogitsDoNotDependOnChunks) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    std::vector<int32_t> tokens(40);
    std::iota(tokens.begin(), tokens.end(), 7);
    const std::vector<float> whole = Logits({name}, tokens, 64);
    EXPECT_EQ(whole, Logits({name}, tokens, 1)) << name;
    EXPECT_EQ(whole, Logits({name}, tokens, 7)) << name;
  }
}

}  // namespace
}  // namespace switchyard
