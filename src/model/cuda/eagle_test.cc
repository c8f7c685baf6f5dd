// EAGLE heads and MTP layers on a GPU equal those on a CPU, whose computation model/eagle_test.cc
// and model/mtp_layers_test.cc check. Passes of one size are repeated, so that they run directly,
// are captured, and are replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/best_tokens.h"
#include "kernels/device.h"
#include "model/config_eagle.h"
#include "model/model.h"
#include "model/test_eagle.h"
#include "model/test_layouts.h"
#include "model/test_mtp.h"

namespace switchyard {
namespace {

using testing::EagleHead;

constexpr int32_t kPages[] = {2, 0, 3, 1, 5, 4, 7, 6};
constexpr int32_t kDrafts = 2, kRounds = 6;

// Rows of one sequence from position `first` on.
ForwardBatch BatchOf(const std::vector<int32_t>& tokens, int32_t first, bool decodes) {
  ForwardBatch batch;
  batch.tokens = tokens;
  const auto rows = static_cast<int32_t>(tokens.size());
  for (int32_t position = first; position < first + rows; ++position) {
    batch.positions.push_back(position);
    batch.slots.push_back(kPages[position / kPageSize] * kPageSize + position % kPageSize);
  }
  batch.sequences.push_back(
      {.row_begin = 0, .rows = rows, .kv_len = first + rows, .pages = kPages});
  batch.decode_tokens = decodes ? rows : 0;
  return batch;
}

// A target and its head on one device.
class Side {
 public:
  Side(const std::string& fixture, const ModelConfig& target, const ModelConfig& head,
       const std::filesystem::path& dir, const ModelOptions& options, RankComm& comm,
       ThreadPool& pool)
      : target_(Fixture(fixture), target, TargetOptions(options, head, target), comm, pool),
        head_(dir, head, HeadOptions(options, target_), comm, pool),
        target_kv_(target_.MakeCache(std::size(kPages), kPageSize, DType::kF32)),
        head_kv_(head_.MakeCache(std::size(kPages), kPageSize, DType::kF32)) {}

  // Logits of all rows, and the rows that the head reads.
  std::pair<std::vector<float>, std::vector<float>> RunTarget(ForwardBatch batch) {
    for (int32_t row = 0; row < batch.num_tokens(); ++row) batch.logit_rows.push_back(row);
    return Run(target_, target_kv_, batch, head_.config().target_row_width());
  }
  // Logits of the last row, and the head's own rows. `first_row`: the hidden row of the first
  // token, of the target or of the head itself.
  std::pair<std::vector<float>, std::vector<float>> RunHead(ForwardBatch batch, int32_t first_row,
                                                            bool own) {
    const auto rows = static_cast<int32_t>(batch.num_tokens());
    for (int32_t row = 0; row < rows; ++row) batch.hidden_rows.push_back(first_row + row);
    batch.logit_rows = {rows - 1};
    batch.hidden = own ? head_.hidden() : target_.hidden();
    batch.own_hidden = own;
    return Run(head_, head_kv_, batch, head_.config().hidden);
  }

 private:
  static ModelOptions TargetOptions(ModelOptions options, const ModelConfig& head,
                                    const ModelConfig& target) {
    options.keeps_hidden = true;
    options.kept_inputs = InputsReadBy(head, target);
    return options;
  }
  static ModelOptions HeadOptions(ModelOptions options, const Model& target) {
    options.keeps_hidden = true;
    options.target = &target;
    return options;
  }
  std::pair<std::vector<float>, std::vector<float>> Run(Model& model, KvStorage& kv,
                                                        ForwardBatch& batch, int64_t width) {
    batch.pass = ++passes_;
    const std::span<const float> logits = model.Forward(batch, kv);
    std::vector<float> hidden(batch.num_tokens() * width);
    model.device().CopyOut(hidden.data(), model.hidden(), hidden.size() * sizeof(float));
    return {{logits.begin(), logits.end()}, std::move(hidden)};
  }

  uint64_t passes_ = 0;
  Model target_, head_;
  KvStorage target_kv_, head_kv_;
};

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 3e-4 * (1 + std::fabs(want[i]))) << "element " << i;
}

// Runs the same pass on both sides and compares its results.
template <typename Pass>
void ExpectSame(Side& gpu, Side& cpu, const char* what, const Pass& pass) {
  SCOPED_TRACE(what);
  const auto want = pass(cpu), got = pass(gpu);
  ExpectNear(got.first, want.first);
  ExpectNear(got.second, want.second);
}

// A prompt, then rounds of a verification of kDrafts drafts, whose last draft is wrong, and a
// chain of the head.
void CompareSides(Side& gpu, Side& cpu) {
  const auto token = [](int32_t position) { return (97 * position + 13) % 500; };
  const auto tokens = [&](int32_t first, int32_t count) {
    std::vector<int32_t> all(count);
    for (int32_t i = 0; i < count; ++i) all[i] = token(first + i);
    return all;
  };
  int32_t begin = 0;
  for (int32_t round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const bool decodes = round > 0;
    const int32_t rows = decodes ? 1 + kDrafts : 5, kept = decodes ? rows - 1 : rows;
    const ForwardBatch batch = BatchOf(tokens(begin, rows), begin, decodes);
    ExpectSame(gpu, cpu, "target", [&](Side& side) { return side.RunTarget(batch); });
    const ForwardBatch first = BatchOf(tokens(begin + 1, kept), begin, decodes);
    ExpectSame(gpu, cpu, "head", [&](Side& side) { return side.RunHead(first, 0, /*own=*/false); });
    begin += kept;
    for (int32_t draft = 1; draft < kDrafts + 1; ++draft) {
      const ForwardBatch next = BatchOf({token(begin + draft)}, begin + draft - 1, true);
      const int32_t row = draft == 1 ? kept - 1 : 0;
      ExpectSame(gpu, cpu, "chain",
                 [&](Side& side) { return side.RunHead(next, row, /*own=*/true); });
    }
  }
}

// `config`: of a head in `dir`.
void CompareHeads(const std::string& fixture, const ModelConfig& target, const ModelConfig& config,
                  const std::filesystem::path& dir, bool graphs) {
  ModelOptions options{.dtype = DType::kF32,
                       .max_tokens = 16,
                       .context_length = std::ssize(kPages) * kPageSize,
                       .page_size = kPageSize};
  const MeshShape one{.tp = 1};
  RunRankThreads(
      1, SymmetricBytesPerRank(target, options, one) + SymmetricBytesPerRank(config, options, one),
      [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), one, rank);
        ThreadPool pool(1);
        Side cpu(fixture, target, config, dir, options, *comm, pool);
        ModelOptions on_gpu = options;
        on_gpu.gpu = GpuOptions{.graphs = graphs,
                                .graph_max_tokens = 8,
                                .max_sequences = 9,
                                .timeout = std::chrono::seconds(20)};
        Side gpu(fixture, target, config, dir, on_gpu, *comm, pool);
        CompareSides(gpu, cpu);
      });
}

// `reduced`: the head has every fifth row of the target's.
void CompareHead(const std::string& fixture, const EagleHead& head, bool graphs,
                 bool reduced = false) {
  const ModelConfig target = LoadModelConfig(Fixture(fixture));
  const testing::TempDir dir;
  testing::WriteEagleHead(dir.path(), head, target);
  ModelConfig config = LoadEagleConfig(dir.path(), target, head.inner_rows);
  if (reduced) config.reduced_head = testing::EveryFifthRow(target, Fixture(fixture));
  CompareHeads(fixture, target, config, dir.path(), graphs);
}

TEST(CudaEagle, HeadsEqualThoseOnACpu) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const EagleHead heads[] = {
      {.inner_rows = false, .bias = true, .layer = "layers.0."},
      {.layers = {0, 1, 2}, .draft_vocab = 128},
      {.layers = {0, 1, 2}, .bias = true, .norm_before_residual = true, .layer = "layers.0."},
      {.layers = {0, 2}, .draft_vocab = 100, .hidden = 48},
  };
  for (const char* fixture : {"qwen3", "deepseek_v3"}) {
    for (size_t i = 0; i < std::size(heads); ++i) {
      for (const bool graphs : {true, false}) {
        SCOPED_TRACE(::testing::Message() << fixture << " head " << i << " graphs " << graphs);
        CompareHead(fixture, heads[i], graphs);
        if (heads[i].draft_vocab == 0) CompareHead(fixture, heads[i], graphs, /*reduced=*/true);
      }
    }
  }
}

// A model that samples tokens itself selects the best ones of the logits that it would return.
TEST(CudaEagle, BestTokensAreThoseOfTheLogits) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  constexpr int32_t kCount = 5;
  const ModelConfig config = LoadModelConfig(Fixture("qwen3"));
  ModelOptions options{.dtype = DType::kF32,
                       .max_tokens = 16,
                       .context_length = std::ssize(kPages) * kPageSize,
                       .page_size = kPageSize};
  const MeshShape one{.tp = 1};
  const size_t bytes = SymmetricBytesPerRank(config, options, one);
  options.gpu = GpuOptions{.max_sequences = 9, .timeout = std::chrono::seconds(20)};
  RunRankThreads(1, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), one, rank);
    ThreadPool pool(1);
    Model model(Fixture("qwen3"), config, options, *comm, pool);
    KvStorage kv = model.MakeCache(std::size(kPages), kPageSize, DType::kF32);
    ForwardBatch batch = BatchOf({5, 17, 200, 31}, 0, /*decodes=*/false);
    batch.logit_rows = {1, 2, 3};
    batch.pass = 1;
    const std::span<const float> found = model.Forward(batch, kv);
    const std::vector<float> logits(found.begin(), found.end());
    const int64_t width = config.output_width();
    std::vector<int32_t> ids(width);
    for (int64_t i = 0; i < width; ++i) ids[i] = static_cast<int32_t>(width - i);
    model.SetTokens(ids);
    batch.pass = 2;
    batch.draws.resize(batch.logit_rows.size());
    batch.best_tokens = kCount;
    EXPECT_TRUE(model.Forward(batch, kv).empty());
    const kernels::BestTokenRows best = model.best();
    ASSERT_EQ(best.exp_sums.size(), batch.draws.size());
    for (int64_t row = 0; row < std::ssize(batch.draws); ++row) {
      std::vector<kernels::BestToken> want(kCount);
      const auto of_row = std::span(logits).subspan(row * width, width);
      EXPECT_EQ(best.exp_sums[row], kernels::SelectBestTokens(of_row, want));
      for (int32_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(best.Row(row)[i].token, ids[want[i].token]);
        EXPECT_EQ(best.Row(row)[i].logit, want[i].logit);
      }
      EXPECT_EQ(model.drawn()[row], best.Row(row)[0].token);  // the sampling is greedy
    }
  });
}

TEST(CudaMtpLayers, EqualThoseOnACpu) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  for (const char* family : {"mimo_v2_flash", "longcat_flash"}) {
    const auto from = Fixture(std::string("../families/") + family);
    const testing::TempDir dir;
    testing::WriteModel(from, testing::WithMtpLayer(from), dir.path());
    const ModelConfig target = LoadModelConfig(dir.path());
    for (const bool graphs : {true, false}) {
      SCOPED_TRACE(::testing::Message() << family << " graphs " << graphs);
      CompareHeads(dir.path().string(), target, MtpConfigOf(target), dir.path(), graphs);
    }
  }
}

}  // namespace
}  // namespace switchyard
