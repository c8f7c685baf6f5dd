// Engine on the reference checkpoints, against what `transformers` generated.
#include "engine/engine.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// reference.safetensors: prompt.N and generated.N, int64.
class Reference {
 public:
  explicit Reference(const fs::path& dir) {
    std::ifstream in(dir / "reference.safetensors", std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof size);
    head_ = nlohmann::json::parse(bytes_.substr(8, size));
    data_ = 8 + size;
  }
  int prompts() const {
    int n = 0;
    while (head_.contains(fmt::format("prompt.{}", n))) ++n;
    return n;
  }
  std::vector<int32_t> Ids(const std::string& name, int i) const {
    const std::vector<int64_t> ids = Values<int64_t>(fmt::format("{}.{}", name, i));
    return {ids.begin(), ids.end()};
  }
  std::vector<float> Logits(int i) const { return Values<float>(fmt::format("logits.{}", i)); }

 private:
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const auto& range = head_.at(name).at("data_offsets");
    const size_t begin = range[0], end = range[1];
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
    return values;
  }
  std::string bytes_;
  nlohmann::json head_;
  size_t data_ = 0;
};

struct Case {
  const char* fixture;
  MeshShape mesh;
  const char* backend;
  int32_t chunk;
};

class EngineFixture : public ::testing::TestWithParam<Case> {};

TEST_P(EngineFixture, GeneratesWhatTransformersGenerates) {
  const Case& c = GetParam();
  const fs::path dir = fs::path(SWITCHYARD_TEST_DATA) / "fixtures" / c.fixture;
  EngineConfig config;
  config.model_path = dir;
  config.dtype = "float32";
  config.mesh = c.mesh;
  config.moe.a2a_backend = c.backend;
  config.max_total_tokens = 2048;
  config.chunked_prefill_size = c.chunk;
  config.page_size = 4;
  config.check_batches = true;
  uint64_t loaded = 0, total = 1;
  Engine engine(config, [&](uint64_t done, uint64_t of) {
    loaded = done;
    total = of;
  });
  EXPECT_EQ(loaded, total);

  const Reference reference(dir);
  ASSERT_GT(reference.prompts(), 0);
  for (int i = 0; i < reference.prompts(); ++i) {
    SCOPED_TRACE(fmt::format("prompt {}", i));
    const std::vector<int32_t> prompt = reference.Ids("prompt", i);
    EngineRequest request{.input_ids = prompt};
    request.sampling = {.max_new_tokens = 32, .temperature = 0, .ignore_eos = true};
    EXPECT_EQ(engine.Generate(request).new_tokens, reference.Ids("generated", i));

    request.sampling.max_new_tokens = 1;
    request.logprob = {.enabled = true, .start = 0};
    const RequestOutput out = engine.Generate(request);
    ASSERT_EQ(out.input_logprobs.size(), prompt.size());
    const std::vector<float> logits = reference.Logits(i);
    const size_t vocab = logits.size() / prompt.size();
    for (size_t t = 1; t < prompt.size(); ++t) {
      const float* row = logits.data() + (t - 1) * vocab;
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(out.input_logprobs[t].logprob, row[prompt[t]] - std::log(sum), 2e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(References, EngineFixture,
                         ::testing::Values(Case{"mixtral", {1, 1}, "none", 2048},
                                           Case{"mixtral", {2, 2}, "deepep", 5},
                                           Case{"mixtral", {2, 1}, "none", 3},
                                           Case{"deepseek_v3_fp8", {2, 2}, "none", 7},
                                           Case{"deepseek_v3_fp8", {2, 2}, "deepep", 64}));

TEST(Engine, AnUnfitRequestIsAnError) {
  EngineConfig config;
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures/llama";
  config.max_total_tokens = 64;
  Engine engine(config);
  EngineRequest request{.input_ids = std::vector<int32_t>(100, 1)};
  EXPECT_THROW(engine.Generate(request), Error);
  request.input_ids = {1, 2, 3};
  request.sampling.max_new_tokens = 4;
  request.sampling.ignore_eos = true;
  EXPECT_EQ(engine.Generate(request).new_tokens.size(), 4u);
}

TEST(Engine, AMissingModelIsAnError) {
  EngineConfig config;
  config.model_path = "/nonexistent";
  EXPECT_THROW(Engine{config}, Error);
}

}  // namespace
}  // namespace switchyard
