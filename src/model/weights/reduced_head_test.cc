// The rows of a reduced head (ReducedHead) equal those of the whole head, bit by bit.
#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "model/config_eagle.h"
#include "model/config_quantization.h"
#include "model/test_eagle.h"
#include "model/weights/assembled.h"
#include "model/weights/common_weights.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

using testing::Dequantize;
using testing::FixtureDir;
using ::testing::HasSubstr;
using testing::Values;

// `count` different tokens, ascending.
std::vector<int32_t> SomeTokens(int64_t vocab, int64_t count, uint32_t seed) {
  std::vector<int32_t> all(vocab), tokens;
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 random(seed);
  std::ranges::sample(all, std::back_inserter(tokens), count, random);
  return tokens;
}

std::shared_ptr<const ReducedHead> Reduced(std::vector<int32_t> tokens) {
  return std::make_shared<ReducedHead>(ReducedHead{.tokens = std::move(tokens)});
}

// Head and bias of all ranks of the group that shards the head, joined.
struct Head {
  Values rows, bias;
  bool operator==(const Head&) const = default;
};

template <typename Load>
Head Join(const ModelConfig& config, const MeshShape& shape, const Load& load) {
  Head head;
  for (int rank = 0; rank < shape.tp; ++rank) {
    const ModelWeights w = load(Mesh(shape, rank));
    EXPECT_EQ(w.head.n, HeadRows(config.head_rows(), Mesh(shape, rank)).size());
    const Values rows = Dequantize(w.head);
    head.rows.insert(head.rows.end(), rows.begin(), rows.end());
    if (!w.head_bias.defined()) continue;
    const auto bias = w.head_bias.span<float>();
    head.bias.insert(head.bias.end(), bias.begin(), bias.end());
  }
  return head;
}

Head HeadOf(const std::filesystem::path& dir, const ModelConfig& config, const MeshShape& shape,
            const LoadOptions& options = {}) {
  return Join(config, shape,
              [&](const Mesh& mesh) { return LoadWeights(dir, config, mesh, options); });
}

Head Pick(const Head& whole, int64_t hidden, const std::vector<int32_t>& tokens) {
  Head picked;
  for (const int32_t token : tokens) {
    const auto row = whole.rows.begin() + token * hidden;
    picked.rows.insert(picked.rows.end(), row, row + hidden);
    if (!whole.bias.empty()) picked.bias.push_back(whole.bias[token]);
  }
  return picked;
}

// Compares heads of several sizes and layouts, the last ones with ranks that have no row.
void Compare(const std::filesystem::path& dir, ModelConfig config,
             const LoadOptions& options = {}) {
  const Head whole = HeadOf(dir, config, {1, 1}, options);
  for (const int64_t count : {config.vocab_size, config.vocab_size / 3, int64_t{13}, int64_t{1}}) {
    const std::vector<int32_t> tokens = SomeTokens(config.vocab_size, count, 7);
    config.reduced_head = Reduced(tokens);
    ASSERT_EQ(config.head_rows(), count);
    const Head want = Pick(whole, config.hidden, tokens);
    for (const MeshShape& shape : {MeshShape{1, 1}, {2, 1}, {4, 1}}) {
      SCOPED_TRACE(::testing::Message() << dir << " " << count << " tokens, tp " << shape.tp);
      EXPECT_TRUE(HeadOf(dir, config, shape, options) == want);
    }
  }
}

TEST(ReducedHeadTest, HasTheRowsOfTheWholeHead) {
  for (const char* name : {"mixtral", "olmoe", "llama", "qwen3", "gpt_oss"})
    Compare(FixtureDir(name), LoadModelConfig(FixtureDir(name)));
  for (const char* name : {"phimoe", "kimi_k25_tied"}) {  // a bias; tied to the embedding
    const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families" / name;
    Compare(dir, LoadModelConfig(dir));
  }
}

TEST(ReducedHeadTest, HasTheRowsOfAnMtpLayer) {
  for (const char* name : {"deepseek_v3", "glm4_moe"}) {
    const ModelConfig target = LoadModelConfig(FixtureDir(name));
    if (target.mtp_layers == 0) continue;
    Compare(FixtureDir(name), MtpConfigOf(target));
    Compare("/nonexistent", MtpConfigOf(target), {.load_format = "dummy"});
  }
}

// Each row is quantized alone, so it has the codes of the same row of the whole head.
TEST(ReducedHeadTest, MayBePackedWhileLoading) {
  for (const char* method : {"w8a8_int8", "int4"}) {
    ModelConfig config = LoadModelConfig(FixtureDir("olmoe"), {}, {.method = method});
    for (const SchemeRule& rule : config.quantization.rules)
      if (rule.targets.empty())
        config.quantization.chosen.push_back(
            {rule.scheme, {{ModulePattern::Kind::kName, "lm_head"}}});
    SCOPED_TRACE(method);
    Compare(FixtureDir("olmoe"), config);
    Compare("/nonexistent", config, {.load_format = "dummy"});
    config.reduced_head = Reduced({0, 5});
    EXPECT_NE(LoadWeights(FixtureDir("olmoe"), config, Mesh(), {}).head.format,
              WeightFormat::kBF16);
  }
}

TEST(ReducedHeadTest, HasTheRowsOfAGgufFile) {
  for (const char* name : {"llama_bf16", "mixtral_q4_0", "olmoe_q8_0"}) {
    const auto file =
        std::filesystem::path(SWITCHYARD_TEST_DATA) / "gguf" / fmt::format("{}.gguf", name);
    Compare(file, LoadModelConfig(file));
  }
}

// A head of EAGLE, whose rows the target stores.
struct EagleOfTarget {
  explicit EagleOfTarget(const char* name)
      : target(std::make_shared<ModelConfig>(LoadModelConfig(FixtureDir(name)))) {
    const testing::EagleHead head{.inner_rows = false, .layer = "layers.0."};
    testing::WriteEagleHead(dir.path(), head, *target);
    config = LoadEagleConfig(dir.path(), *target, /*inner_rows=*/false);
    config.reduced_head =
        std::make_shared<ReducedHead>(ReducedHead{.tokens = SomeTokens(target->vocab_size, 31, 3),
                                                  .owner = target,
                                                  .owner_dir = FixtureDir(name)});
  }

  testing::TempDir dir;
  std::shared_ptr<const ModelConfig> target;
  ModelConfig config;
};

TEST(ReducedHeadTest, MayHaveTheRowsOfTheTarget) {
  for (const char* name : {"qwen3", "deepseek_v3", "olmoe"}) {
    SCOPED_TRACE(name);
    const EagleOfTarget eagle(name);
    CheckCheckpoint(eagle.dir.path(), eagle.config);
    for (const char* format : {"auto", "dummy"}) {
      const LoadOptions options{.load_format = format};
      const Head want = Pick(HeadOf(FixtureDir(name), *eagle.target, {1, 1}, options),
                             eagle.target->hidden, eagle.config.reduced_head->tokens);
      for (const MeshShape& shape : {MeshShape{1, 1}, {2, 1}}) {
        EXPECT_TRUE(HeadOf(eagle.dir.path(), eagle.config, shape, options) == want);
        const CommonWeights common(eagle.dir.path(), eagle.config, shape, options);
        EXPECT_TRUE(Join(eagle.config, shape,
                         [&](const Mesh& mesh) { return common.Load(mesh, options); }) == want);
      }
    }
  }
}

// The plan counts the rows that are kept.
TEST(ReducedHeadTest, TakesTheMemoryOfItsRows) {
  ModelConfig mtp = MtpConfigOf(LoadModelConfig(FixtureDir("deepseek_v3")));
  const size_t whole = WeightBytesPerRank(mtp, Mesh(), {});
  mtp.reduced_head = Reduced(SomeTokens(mtp.vocab_size, 100, 1));
  const size_t reduced = WeightBytesPerRank(mtp, Mesh(), {});
  EXPECT_EQ(reduced, LoadWeights(FixtureDir("deepseek_v3"), mtp, Mesh(), {}).bytes_mapped);
  EXPECT_EQ(whole - reduced,
            static_cast<size_t>((mtp.vocab_size - 100) * mtp.hidden) * SizeOf(mtp.dtype));

  EagleOfTarget eagle("qwen3");
  const size_t with = WeightBytesPerRank(eagle.config, Mesh(), {});
  EXPECT_EQ(with, LoadWeights(eagle.dir.path(), eagle.config, Mesh(), {}).bytes_mapped);
  const size_t rows = eagle.config.reduced_head->tokens.size();
  eagle.config.reduced_head = nullptr;  // then the head is the target's
  EXPECT_EQ(with - WeightBytesPerRank(eagle.config, Mesh(), {}),
            rows * static_cast<size_t>(eagle.target->hidden) * SizeOf(eagle.target->dtype));
}

TEST(ReducedHeadTest, AQuantizedHeadIsRefusedByName) {
  ModelConfig config = LoadModelConfig(FixtureDir("olmoe"));
  const testing::TempDir dir;
  testing::CopyConfig(FixtureDir("olmoe"), dir.path());
  testing::RawTensors tensors = testing::ReadSafetensors(FixtureDir("olmoe"));
  const std::vector<int64_t> shape = tensors.at("lm_head.weight").shape;
  tensors["lm_head.weight"] = {"F8_E4M3", shape,
                               std::string(static_cast<size_t>(shape[0] * shape[1]), '\0')};
  testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
  config.quantization.stored["lm_head"] = {.packing = Packing::kFp8,
                                           .format = WeightFormat::kFp8Channel};
  config.reduced_head = Reduced({1, 2});
  try {
    CheckCheckpoint(dir.path(), config);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--speculative-token-map"));
    EXPECT_THAT(error.what(), HasSubstr("\"lm_head.weight\" is quantized"));
  }
}

}  // namespace
}  // namespace switchyard
