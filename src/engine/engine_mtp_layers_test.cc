// Drafts of the MTP layers of MiMo-V2-Flash and LongCat-Flash.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <ostream>
#include <string>
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

  // The name of a test contains this text.
  friend void PrintTo(const MtpCase& c, std::ostream* out) {
    *out << fmt::format("{} tp {} ep {} dp {} topk {}", c.family, c.mesh.tp, c.mesh.ep, c.mesh.dp,
                        c.speculative.eagle_topk);
  }
};

class MtpLayersOfEngine : public ::testing::TestWithParam<MtpCase> {};

TEST_P(MtpLayersOfEngine, GiveTheOutputsWithoutDrafts) {
  const MtpCase& c = GetParam();
  const fs::path from = FamilyDir(c.family);
  const testing::TempDir dir;
  testing::WriteModel(from, testing::WithMtpLayer(from), dir.path());
  EngineConfig config = ConfigIn(dir.path(), c.mesh);
  constexpr uint64_t kRequests = FewerIfSanitized(16);
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests);
  }
  config.speculative = c.speculative;
  Engine engine(config);
  ExpectEqual(RunAll(engine, kRequests), want);
  EXPECT_GT(Total(engine.Stats()).drafted_tokens, 0);
}

SpeculativeOptions Chains() { return {.algorithm = "NEXTN", .num_steps = "3"}; }
SpeculativeOptions Trees() {
  return {.algorithm = "NEXTN", .num_steps = "3", .eagle_topk = 3, .num_draft_tokens = 8};
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MtpLayersOfEngine,
    ::testing::Values(MtpCase{"mimo_v2_flash", {1, 1}, Chains()},
                      MtpCase{"mimo_v2_flash", {2, 2}, Chains()},
                      MtpCase{"mimo_v2_flash", {.tp = 2, .ep = 2, .dp = 2}, Trees()},
                      MtpCase{"longcat_flash", {1, 1}, Trees()},
                      MtpCase{"longcat_flash", {2, 2}, Chains()},
                      MtpCase{"longcat_flash", {.tp = 2, .ep = 2, .dp = 2}, Chains()}));

// A model whose next token is the last one plus 1, modulo the vocabulary, and whose MTP layer
// predicts this from one of its two inputs. The embedding of a token is a point on a circle in each
// of hidden / 2 planes: the token times an angle of the plane.
class Ring {
 public:
  Ring(const fs::path& from, bool reads_hidden)
      : config_(LoadModelConfig(from)), tensors_(testing::WithMtpLayer(from)) {
    StopLayers();
    std::vector<float> embedding, head, norm;
    for (int64_t token = 0; token < config_.vocab_size; ++token)
      for (int64_t i = 0; i < config_.hidden; ++i) {
        embedding.push_back(static_cast<float>(Point(token, i)));
        head.push_back(static_cast<float>(Point(token - 1, i) / FinalNorm(i)));
      }
    for (int64_t i = 0; i < config_.hidden; ++i) norm.push_back(static_cast<float>(FinalNorm(i)));
    Set("model.embed_tokens.weight", {config_.vocab_size, config_.hidden}, embedding);
    Set("lm_head.weight", {config_.vocab_size, config_.hidden}, head);
    Set("model.norm.weight", {config_.hidden}, norm);
    if (Has("model.mtp.embed_tokens.weight"))
      Set("model.mtp.embed_tokens.weight", {config_.vocab_size, config_.hidden}, embedding);
    const bool own_final = Has(testing::kMtpPrefix + "final_layernorm.weight");
    Set(own_final ? testing::kMtpPrefix + "final_layernorm.weight" : "model.mtp.norm.weight",
        {config_.hidden}, norm);
    SetProjection(reads_hidden);
  }

  const RawTensors& tensors() const { return tensors_; }

 private:
  bool Has(const std::string& name) const { return tensors_.contains(name); }
  void Set(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    ASSERT_TRUE(Has(name)) << name;
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
    const auto plane = static_cast<double>(i / 2);
    return (i / 2 % 2 == 0 ? 1 : -1) * (0.5 + plane / 16);
  }

  // All layers add 0: attention, feed-forwards and experts, and no token chooses an expert that
  // returns its input.
  void StopLayers() {
    for (auto& [name, tensor] : tensors_) {
      if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight"))
        std::memset(tensor.bytes.data(), 0, tensor.bytes.size());
      if (!name.ends_with("e_score_correction_bias")) continue;
      std::vector<float> bias(tensor.shape[0], -1e9f);
      std::fill_n(bias.begin(), config_.moe->router.num_experts, 0.0f);
      tensor = FloatTensor(tensor.shape, bias);
    }
  }

  // From the token after the row: its embedding. From the hidden row: the embedding of the next
  // token, which the projection turns by one step.
  void SetProjection(bool reads_hidden) {
    const int64_t hidden = config_.hidden;
    const std::string of_embedding = NormName("enorm"), of_hidden = NormName("hnorm");
    const std::vector<float> e = Values(of_embedding), h = Values(of_hidden);
    std::vector<float> projection(2 * hidden * hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      float* const row = projection.data() + i * 2 * hidden;
      if (!reads_hidden) {
        row[i] = 1 / e[i];
        continue;
      }
      const double angle = Angle(i / 2);
      for (const int64_t j : {i, i ^ 1}) {
        // [cos, −sin; sin, cos]
        const double turn = i == j ? std::cos(angle) : (i % 2 == 0 ? -1 : 1) * std::sin(angle);
        const double factor = config_.mtp_before_norm ? 1 : FinalNorm(j);
        row[hidden + j] = static_cast<float>(turn / (factor * h[j]));
      }
    }
    Set(testing::kMtpPrefix + "eh_proj.weight", {hidden, 2 * hidden}, projection);
  }
  std::string NormName(const std::string& name) const {
    const std::string plain = testing::kMtpPrefix + name + ".weight";
    return Has(plain) ? plain : testing::kMtpPrefix + name + ".m.weight";
  }
  std::vector<float> Values(const std::string& name) const {
    const std::string& bytes = tensors_.at(name).bytes;  // float32
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  const ModelConfig config_;
  RawTensors tensors_;
};

// A chain of drafts is right only if each pass reads the right embedding, or hidden row.
TEST(MtpLayersOfEngineTest, AnMtpLayerThatKnowsTheNextTokensIsAlwaysRight) {
  for (const char* family : {"mimo_v2_flash", "longcat_flash"})
    for (const bool reads_hidden : {false, true}) {
      SCOPED_TRACE(fmt::format("{} reads hidden rows {}", family, reads_hidden));
      const testing::TempDir dir;
      testing::WriteModel(FamilyDir(family), Ring(FamilyDir(family), reads_hidden).tensors(),
                          dir.path());
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
