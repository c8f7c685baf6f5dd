// Drafts of MTP layers that published checkpoints store apart from the layers of the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/test_effort.h"
#include "engine/test_engine.h"
#include "model/test_mtp.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::FloatTensor;
using testing::RawTensors;

fs::path FamilyDir(const std::string& name) { return Fixture("../families/" + name); }

EngineConfig ConfigIn(const fs::path& dir, const MeshShape& mesh) {
  EngineConfig config = ConfigOf("", mesh);
  config.model_path = dir;
  if (mesh.ep > 1) config.moe.a2a_backend = "deepep";
  return config;
}

struct MtpCase {
  const char* family;
  MeshShape mesh;
  SpeculativeOptions speculative;
  int64_t layers = 1;  // MTP layers

  // The name of a test contains this text.
  friend void PrintTo(const MtpCase& c, std::ostream* out) {
    *out << fmt::format("{} {} steps {} tp {} ep {} dp {} topk {} layers {}", c.family,
                        c.speculative.algorithm, c.speculative.num_steps, c.mesh.tp, c.mesh.ep,
                        c.mesh.dp, c.speculative.eagle_topk, c.layers);
  }
};

class MtpLayersOfEngine : public ::testing::TestWithParam<MtpCase> {};

TEST_P(MtpLayersOfEngine, GiveTheOutputsWithoutDrafts) {
  const MtpCase& c = GetParam();
  const fs::path from = FamilyDir(c.family);
  const testing::TempDir dir;
  testing::WriteModel(from, testing::WithMtpLayer(from, c.layers), dir.path(), c.layers);
  EngineConfig config = ConfigIn(dir.path(), c.mesh);
  const bool repeats = c.speculative.algorithm == std::string("NGRAM");
  const auto request = [repeats](uint64_t i, int32_t vocab) {
    EngineRequest made = RequestOf(i, vocab);
    if (repeats) {  // greedy outputs of small models repeat themselves soon
      made.sampling = {.max_new_tokens = 60, .temperature = 0.0f, .ignore_eos = true};
    }
    return made;
  };
  constexpr uint64_t kRequests = FewerIfSanitized(16);
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests, request);
  }
  config.speculative = c.speculative;
  Engine engine(config);
  ExpectEqual(RunAll(engine, kRequests, request), want);
  // With "auto", n-grams are drafted only if they are likely to be right.
  if (!repeats || c.speculative.num_steps != std::string("auto")) {
    EXPECT_GT(Total(engine.Stats()).drafted_tokens, 0);
  }
  ExpectEqual(RunAll(engine, kRequests, request), want);  // with the prompts in the prefix cache
}

SpeculativeOptions Ngrams() { return {.algorithm = "NGRAM", .num_steps = "4"}; }
SpeculativeOptions Chains() { return {.algorithm = "NEXTN", .num_steps = "3"}; }
SpeculativeOptions Trees() {
  return {.algorithm = "NEXTN", .num_steps = "3", .eagle_topk = 3, .num_draft_tokens = 8};
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MtpLayersOfEngine,
    ::testing::Values(
        MtpCase{"mimo_v2_flash", {1, 1}, Chains()}, MtpCase{"mimo_v2_flash", {2, 2}, Chains()},
        MtpCase{"mimo_v2_flash", {.tp = 2, .ep = 2, .dp = 2}, Trees()},
        MtpCase{"mimo_v2_flash", {1, 1}, Chains(), 3},
        MtpCase{"mimo_v2_flash", {2, 2}, Chains(), 3},
        MtpCase{"mimo_v2_flash", {.tp = 2, .ep = 2, .dp = 2}, Chains(), 3},
        MtpCase{"mimo_v2_flash", {1, 1}, {.algorithm = "NEXTN"}, 3},
        MtpCase{"mimo_v2_flash", {1, 1}, Trees(), 3},  // the first layer makes all drafts
        MtpCase{"longcat_flash", {1, 1}, Trees()}, MtpCase{"longcat_flash", {2, 2}, Chains()},
        MtpCase{"longcat_flash", {.tp = 2, .ep = 2, .dp = 2}, Chains()},
        MtpCase{"exaone_moe", {1, 1}, Trees()}, MtpCase{"exaone_moe_groups", {2, 2}, Chains()},
        MtpCase{"ernie4_5_moe", {1, 1}, Chains()},
        MtpCase{"ernie4_5_moe_sparse", {.tp = 2, .ep = 2, .dp = 2}, Trees()},
        MtpCase{"bailing_moe_v2", {2, 2}, Chains()},
        MtpCase{"bailing_moe_v2_bias", {.tp = 2, .ep = 2, .dp = 2}, Trees()}));

// Models with recurrent states. Their MTP layers have none.
INSTANTIATE_TEST_SUITE_P(
    States, MtpLayersOfEngine,
    ::testing::Values(
        MtpCase{"nemotron_h", {1, 1}, Chains()}, MtpCase{"nemotron_h_latent", {2, 2}, Chains()},
        MtpCase{"nemotron_h", {.tp = 2, .ep = 2, .dp = 2}, Chains()},
        MtpCase{"deepseek_v4", {1, 1}, Chains()}, MtpCase{"deepseek_v4", {1, 1}, Ngrams()},
        MtpCase{"deepseek_v4", {2, 2}, Chains()}, MtpCase{"deepseek_v4_plain", {1, 1}, Ngrams()},
        MtpCase{"deepseek_v4", {1, 1}, {.algorithm = "NGRAM"}},
        MtpCase{"deepseek_v4_plain", {1, 1}, {.algorithm = "NGRAM"}},
        MtpCase{"nemotron_h", {1, 1}, {.algorithm = "NGRAM"}},
        MtpCase{"deepseek_v4_plain", {2, 1}, Chains()},
        MtpCase{"deepseek_v4_plain", {.tp = 2, .ep = 2, .dp = 2}, Chains()}));

// A model whose next token is the last one plus 1, modulo the vocabulary, and whose MTP layer
// predicts this from one of its two inputs. The embedding of a token is a point on a circle in each
// of hidden / 2 planes: the token times an angle of the plane.
class Ring {
 public:
  Ring(const fs::path& from, bool reads_hidden, int64_t layers = 1)
      : config_(LoadModelConfig(from)),
        names_(testing::MtpNamesOf(config_)),
        tensors_(testing::WithMtpLayer(from, layers)) {
    StopLayers();
    std::vector<float> embedding, head, norm;
    for (int64_t token = 0; token < config_.vocab_size; ++token)
      for (int64_t i = 0; i < config_.hidden; ++i) {
        embedding.push_back(static_cast<float>(Point(token, i)));
        head.push_back(static_cast<float>(Point(token - 1, i) / FinalNorm(i)));
      }
    for (int64_t i = 0; i < config_.hidden; ++i) norm.push_back(static_cast<float>(FinalNorm(i)));
    const TensorNames names = NamesOf(config_);
    const std::vector<int64_t> vocabulary = {config_.vocab_size, config_.hidden};
    Set(names.embedding, vocabulary, embedding);
    Set(names.head, vocabulary, head);
    Set(names.final_norm, {config_.hidden}, norm);
    if (!names_.embedding.empty()) Set(names_.embedding + ".weight", vocabulary, embedding);
    if (!names_.head.empty()) Set(names_.head + ".weight", vocabulary, head);
    for (int64_t depth = 0; depth < layers; ++depth) {
      const testing::MtpNames of_depth = testing::MtpNamesOf(config_, depth);
      Set(of_depth.final_norm + ".weight", {config_.hidden}, norm);
      SetProjection(of_depth, reads_hidden, depth + 1);
    }
  }

  const RawTensors& tensors() const { return tensors_; }

 private:
  void Set(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    ASSERT_TRUE(tensors_.contains(name)) << name;
    tensors_[name] = FloatTensor(std::move(shape), values);
  }

  // Angles that are odd multiples of a full circle divided by the vocabulary. They are far enough
  // from regular that no two tokens are near each other in most planes.
  double Angle(int64_t plane) const {
    const auto multiple = static_cast<double>(((7 * plane * plane + 3 * plane + 5) % 256) | 1);
    return 2 * std::numbers::pi * multiple / static_cast<double>(config_.vocab_size);
  }
  double Point(int64_t token, int64_t i) const {
    const double angle = Angle(i / 2) * static_cast<double>(token);
    return i % 2 == 0 ? std::cos(angle) : std::sin(angle);
  }
  // Half of the planes are turned by 180 degrees, so rows before and after the norm differ.
  static double FinalNorm(int64_t i) {
    const int64_t plane = i / 2;
    return (plane % 2 == 0 ? 1 : -1) * (0.5 + static_cast<double>(plane) / 16);
  }

  // All layers add 0: attention, feed-forwards and experts, and no token chooses an expert that
  // returns its input.
  void StopLayers() {
    for (auto& [name, tensor] : tensors_) {
      for (const char* output :
           {"o_proj", "down_proj", "out_proj", "attention.dense", "wo_b", "w2"})
        if (name.ends_with(std::string(output) + ".weight"))
          std::memset(tensor.bytes.data(), 0, tensor.bytes.size());
      if (!name.ends_with("e_score_correction_bias") || config_.moe->router.zero_experts == 0)
        continue;
      std::vector<float> bias(tensor.shape[0], -1e9f);
      std::fill_n(bias.begin(), config_.moe->router.num_experts, 0.0f);
      tensor = FloatTensor(tensor.shape, bias);
    }
  }

  // From the token that the row reads: its embedding. From the hidden row: the embedding of this
  // token, which is `steps` after that of the hidden row. The projection turns it.
  void SetProjection(const testing::MtpNames& names, bool reads_hidden, int64_t steps) {
    const int64_t hidden = config_.hidden;
    const std::vector<float> e = Values(names.embedding_norm), h = Values(names.hidden_norm);
    std::vector<float> of_embedding(hidden * hidden), of_hidden(hidden * hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      if (!reads_hidden) {
        of_embedding[i * hidden + i] = 1 / e[i];
        continue;
      }
      const double angle = Angle(i / 2) * static_cast<double>(steps);
      for (const int64_t j : {i, i ^ 1}) {
        // [cos, −sin; sin, cos]
        const double turn = i == j ? std::cos(angle) : (i % 2 == 0 ? -1 : 1) * std::sin(angle);
        const double factor = config_.mtp_before_norm ? 1 : FinalNorm(j);
        of_hidden[i * hidden + j] = static_cast<float>(turn / (factor * h[j]));
      }
    }
    if (!names.embedding_projection.empty()) {
      Set(names.embedding_projection + ".weight", {hidden, hidden}, of_embedding);
      return Set(names.projection + ".weight", {hidden, hidden}, of_hidden);
    }
    std::vector<float> both;
    for (int64_t i = 0; i < hidden; ++i)
      for (const std::vector<float>* const part : {&of_embedding, &of_hidden})
        both.insert(both.end(), part->begin() + i * hidden, part->begin() + (i + 1) * hidden);
    Set(names.projection + ".weight", {hidden, 2 * hidden}, both);
  }
  std::vector<float> Values(const std::string& name) const {
    const std::string& bytes = tensors_.at(name + ".weight").bytes;  // float32
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  const ModelConfig config_;
  const testing::MtpNames names_;
  RawTensors tensors_;
};

// A chain of drafts is right only if each pass reads the right embedding, or hidden row.
TEST(MtpLayersOfEngineTest, AnMtpLayerThatKnowsTheNextTokensIsAlwaysRight) {
  // MiMo-V2-Flash also with a layer for each draft.
  const std::vector<std::pair<const char*, int64_t>> families = {
      {"mimo_v2_flash", 1},  {"mimo_v2_flash", 3},       {"longcat_flash", 1}, {"exaone_moe", 1},
      {"bailing_moe_v2", 1}, {"ernie4_5_moe_sparse", 1}, {"nemotron_h", 1},    {"deepseek_v4", 1}};
  for (const auto& [family, layers] : families)
    for (const bool reads_hidden : {false, true}) {
      SCOPED_TRACE(
          fmt::format("{}, layers {}, reads hidden rows {}", family, layers, reads_hidden));
      const testing::TempDir dir;
      testing::WriteModel(FamilyDir(family),
                          Ring(FamilyDir(family), reads_hidden, layers).tensors(), dir.path(),
                          layers);
      EngineConfig config = ConfigIn(dir.path(), {2, 2});
      config.speculative = Chains();
      config.speculative.draft_quantization = "unquant";
      Engine engine(config);
      for (uint64_t i = 0; i < 4; ++i) {
        EngineRequest request;
        for (int32_t t = 0; t < 12; ++t) request.input_ids.push_back(Below(i, t, 512));
        request.sampling = {.max_new_tokens = 41,
                            .temperature = i % 2 == 0 ? 0.0f : 1.0f,
                            .seed = i,
                            .ignore_eos = true};
        const RequestOutput output = engine.Generate(request);
        int32_t last = request.input_ids.back();
        for (const int32_t token : output.new_tokens) {
          ASSERT_EQ(token, (last + 1) % 512);
          last = token;
        }
      }
      const EngineStats stats = Total(engine.Stats());
      EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
      EXPECT_EQ(stats.accepted_tokens, 4 * 30);  // 4 requests, each with 10 steps of 3 drafts
    }
}

}  // namespace
}  // namespace switchyard
