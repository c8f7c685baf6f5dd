// Configurations of pooling, and pooling models on several layouts.
#include "model/pooling.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "model/test_layouts.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The path of a fixture of tests/data/pooling, relative to tests/data/fixtures.
std::string Named(const std::string& name) { return "../pooling/" + name; }

// A directory with the files of a checkpoint, as texts.
class Files {
 public:
  explicit Files(const std::string& config) { Write("config.json", config); }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  ModelConfig Load(const PoolingFlags& flags = {}) const {
    return LoadModelConfig(dir_, {}, {}, flags);
  }

 private:
  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

std::string Config(const std::string& architecture, const std::string& more = "") {
  return R"({"architectures": [")" + architecture +
         R"("], "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 160, "max_position_embeddings": 512)" +
         more + "}";
}

constexpr char kModules[] = R"([
  {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
  {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])";

TEST(PoolingConfigTest, ComesFromTheModulesOfACheckpoint) {
  const ModelConfig config = LoadModelConfig(Fixture(Named("qwen3_embedding")));
  ASSERT_TRUE(config.pooling);
  EXPECT_EQ(config.pooling->type, Pooling::kLast);
  EXPECT_TRUE(config.pooling->normalize);
  EXPECT_FALSE(config.pooling->classifies());
  EXPECT_EQ(config.output_width(), 32);

  Files files(Config("Qwen3ForCausalLM"));
  files.Write("modules.json", kModules);
  files.Write("1_Pooling/config.json",
              R"({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false})");
  EXPECT_EQ(files.Load().pooling->type, Pooling::kMean);
  EXPECT_FALSE(files.Load().pooling->normalize);
  files.Write("1_Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  EXPECT_EQ(files.Load().pooling->type, Pooling::kLast);
}

TEST(PoolingConfigTest, ClassesComeFromTheNamesOrTheirNumber) {
  const ModelConfig config = LoadModelConfig(Fixture(Named("qwen3_moe_classifier")));
  ASSERT_TRUE(config.pooling);
  EXPECT_THAT(config.pooling->labels, ElementsAre("cargo", "passenger", "empty"));
  EXPECT_EQ(config.output_width(), 3);

  using Activation = PoolingConfig::Activation;
  const auto read = [](const std::string& more) {
    return *Files(Config("Qwen3ForSequenceClassification", more)).Load().pooling;
  };
  EXPECT_THAT(read("").labels, ElementsAre("LABEL_0", "LABEL_1"));
  EXPECT_EQ(read("").activation, Activation::kSoftmax);
  EXPECT_THAT(read(R"(, "num_labels": 1)").labels, ElementsAre("LABEL_0"));
  EXPECT_EQ(read(R"(, "num_labels": 1)").activation, Activation::kSigmoid);
  EXPECT_EQ(read(R"(, "problem_type": "regression")").activation, Activation::kIdentity);
}

TEST(PoolingConfigTest, FlagsAndHeadlessArchitecturesSetIt) {
  EXPECT_FALSE(Files(Config("Qwen3ForCausalLM")).Load().pooling);
  EXPECT_TRUE(Files(Config("Qwen3ForCausalLM")).Load({.is_embedding = true}).pooling->normalize);
  EXPECT_TRUE(Files(Config("Qwen3Model")).Load().pooling);
  const auto changed =
      Files(Config("Qwen3Model"))
          .Load({.pooler_config = R"({"pooling_type": "MEAN", "normalize": false})"});
  EXPECT_EQ(changed.pooling->type, Pooling::kMean);
  EXPECT_FALSE(changed.pooling->normalize);
}

TEST(PoolingConfigTest, ErrorsNameWhatIsNotSupported) {
  const auto with = [](const PoolingFlags& flags, const std::string& more = "") {
    return ErrorOf([&] { Files(Config("Qwen3Model", more)).Load(flags); });
  };
  EXPECT_THAT(with({.pooler_config = R"({"pooling_type": "CLS"})"}),
              HasSubstr("pooling \"CLS\" is not supported"));
  EXPECT_THAT(with({.pooler_config = R"({"step_tag_id": 3})"}),
              HasSubstr("step_tag_id is not supported"));
  EXPECT_THAT(with({}, R"(, "is_causal": false)"), HasSubstr("attention in both directions"));
  Files text(Config("Qwen3ForCausalLM"));
  EXPECT_THAT(ErrorOf([&] { text.Load({.pooler_config = "{}"}); }), HasSubstr("--is-embedding"));
  text.Write("modules.json", kModules);
  text.Write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  EXPECT_THAT(ErrorOf([&] { text.Load(); }), HasSubstr("pooling_mode_cls_token"));
  text.Write("modules.json",
             R"([{"path": "3_Dense", "type": "sentence_transformers.models.Dense"}])");
  EXPECT_THAT(ErrorOf([&] { text.Load(); }), HasSubstr("module Dense is not supported"));
  text.Write("modules.json",
             R"([{"path": "../x", "type": "sentence_transformers.models.Pooling"}])");
  EXPECT_THAT(ErrorOf([&] { text.Load(); }), HasSubstr("is not in the checkpoint"));
}

// The stored outputs of transformers for a text: its ids, and rows of the output.
struct Stored {
  std::vector<int32_t> ids;
  std::vector<float> rows;
};
std::vector<Stored> StoredOutputs(const std::string& fixture, const std::string& name) {
  const std::filesystem::path path = Fixture(fixture) / "pooling.safetensors";
  std::ifstream in(path, std::ios::binary);
  const std::vector<uint8_t> bytes(std::istreambuf_iterator<char>(in), {});
  const TensorEntries entries = ParseSafetensorsHeader(bytes, bytes.size(), path.string());
  std::vector<Stored> all;
  for (int i = 0; entries.contains(fmt::format("ids.{}", i)); ++i) {
    const TensorEntry& ids = entries.at(fmt::format("ids.{}", i));
    const TensorEntry& rows = entries.at(fmt::format("{}.{}", name, i));
    const auto* first = reinterpret_cast<const int64_t*>(bytes.data() + ids.begin);
    const auto* values = reinterpret_cast<const float*>(bytes.data() + rows.begin);
    all.push_back({{first, first + ids.shape[0]}, {values, values + (rows.end - rows.begin) / 4}});
  }
  return all;
}

class PoolingModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(PoolingModelTest, RowsAreThoseOfTransformers) {
  const bool classifies = GetParam().fixture.ends_with("classifier");
  Case c = GetParam();
  std::vector<Stored> stored = StoredOutputs(c.fixture, classifies ? "scores" : "hidden");
  ASSERT_EQ(stored.size(), 5u);
  stored.erase(std::next(stored.begin(), 3));  // longer than the passes of this test
  std::vector<Group> groups(c.dp);
  for (size_t i = 0; i < stored.size(); ++i)
    groups[i % c.dp].push_back({.tokens = stored[i].ids, .chunk = 3 + static_cast<int>(i)});
  const auto outcomes = switchyard::Run(c, groups);
  double worst = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::vector<float>& got = outcomes[i % c.dp][i / c.dp].logits;
    const std::vector<float>& want = stored[i].rows;  // for a classifier: the last row only
    ASSERT_GE(got.size(), want.size());
    ASSERT_TRUE(classifies || got.size() == want.size());
    const size_t skipped = got.size() - want.size();
    for (size_t j = 0; j < want.size(); ++j)
      worst = std::max(worst, static_cast<double>(std::abs(got[skipped + j] - want[j])));
  }
  EXPECT_LT(worst, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PoolingModelTest,
    ::testing::Values(Case{.fixture = Named("qwen3_embedding")},
                      Case{.fixture = Named("qwen3_embedding"), .tp = 2},
                      Case{.fixture = Named("qwen3_embedding"), .tp = 2, .dp = 2},
                      Case{.fixture = Named("qwen3_moe_classifier")},
                      Case{.fixture = Named("qwen3_moe_classifier"), .tp = 2, .ep = 2},
                      Case{.fixture = Named("qwen3_moe_classifier"),
                           .tp = 2,
                           .ep = 2,
                           .backend = "deepep",
                           .dp = 2,
                           .dense_tp = 1,
                           .two_batches = true}));

// Pooled results, like logits, have equal bits on layouts with dp = tp = ep and replicated dense
// layers.
TEST(PoolingModelTest, BitsDependOnNeitherBatchNorChunksNorRanks) {
  const std::string fixture = Named("qwen3_moe_classifier");
  const Text text{.tokens = Ids(21, 5), .chunk = 4};
  const Case one{.fixture = fixture, .backend = "deepep"};
  const Case two{.fixture = fixture, .tp = 2, .ep = 2, .backend = "deepep", .dp = 2, .dense_tp = 1};
  const auto alone = switchyard::Run(one, {{{.tokens = text.tokens}}});
  EXPECT_EQ(alone[0][0], switchyard::Run(one, {{{.tokens = Ids(9, 1)}, text}})[0][1]);
  EXPECT_EQ(alone[0][0], switchyard::Run(two, {{{.tokens = Ids(7, 2), .chunk = 3}}, {text}})[1][0]);
}

}  // namespace
}  // namespace switchyard
