// The weights of a rank that was a spare equal those that LoadWeights loads, bit by bit.
#include "model/weights/common_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/weights/assembled.h"
#include "model/weights/named_weights.h"

namespace switchyard {
namespace {

using testing::Dequantize;
using testing::FixtureDir;
using testing::QuantizedDir;
using testing::Values;

// Lists the numbers of all weights of a rank by name. A format has one more number, at the end.
class Listing {
 public:
  explicit Listing(const ModelWeights& weights) {
    Add("embedding", weights.embedding);
    for (size_t i = 0; i < weights.layers.size(); ++i)
      AddLayer(fmt::format("layers.{}.", i), weights.layers[i]);
    Add("final_norm", weights.final_norm);
    Add("head", weights.head);
    Add("head_bias", weights.head_bias);
  }
  const std::map<std::string, Values>& all() const { return all_; }

  void Add(const std::string& name, const WeightView& w) {
    if (!w.defined()) return;
    Values values = Dequantize(w);
    values.push_back(static_cast<float>(w.format));
    values.push_back(static_cast<float>(w.activation));
    values.push_back(w.input_scale);
    all_[name] = std::move(values);
  }
  void Add(const std::string& name, const Tensor& t) {
    if (t.defined()) all_[name].assign(t.span<float>().begin(), t.span<float>().end());
  }
  void Add(const std::string& name, const LinearWeight& linear) {
    Add(name, linear.w);
    Add(name + ".bias", linear.bias);
  }

 private:
  void Add(const std::string& name, const float* values, int64_t n) {
    if (values) all_[name].assign(values, values + n);
  }
  void Add(const std::string& name, const kernels::ExpertWeights& expert) {
    Add(name + ".gate", expert.gate);
    Add(name + ".up", expert.up);
    Add(name + ".down", expert.down);
    Add(name + ".gate_bias", expert.gate_bias, expert.gate.n);
    Add(name + ".up_bias", expert.up_bias, expert.up.n);
    Add(name + ".down_bias", expert.down_bias, expert.down.n);
  }
  void AddLayer(const std::string& name, const LayerWeights& layer) {
    Add(name + "input_norm", layer.input_norm);
    Add(name + "post_attention_norm", layer.post_attention_norm);
    AddAttention(name, layer, this);
    Add(name + "dense", layer.dense);
    Add(name + "router", layer.moe.router.w);
    Add(name + "router_bias", layer.moe.router.bias, layer.moe.router.w.n);
    Add(name + "correction_bias", layer.moe.router.correction_bias, layer.moe.router.w.n);
    for (size_t i = 0; i < layer.moe.experts.size(); ++i)
      Add(fmt::format("{}expert.{}", name, i), layer.moe.experts[i]);
    Add(name + "shared", layer.moe.shared);
    Add(name + "shared_gate", layer.moe.shared_gate);
  }

  std::map<std::string, Values> all_;
};

// The weights are compared after the object with the common weights is gone.
void ExpectLoaded(const std::filesystem::path& dir, const ModelConfig& config,
                  const MeshShape& shape, const LoadOptions& options) {
  auto common = std::make_unique<const CommonWeights>(dir, config, shape, options);
  std::vector<ModelWeights> got;
  got.reserve(shape.world());
  for (int rank = 0; rank < shape.world(); ++rank)
    got.push_back(common->Load(Mesh(shape, rank), options));
  common.reset();
  for (int rank = 0; rank < shape.world(); ++rank) {
    SCOPED_TRACE(fmt::format("tp {} ep {} dp {} rank {}", shape.tp, shape.ep, shape.dp, rank));
    const ModelWeights want = LoadWeights(dir, config, Mesh(shape, rank), options);
    EXPECT_EQ(got[rank].bytes_mapped, want.bytes_mapped);
    EXPECT_TRUE(Listing(got[rank]).all() == Listing(want).all());
  }
}

const MeshShape kWhole{.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1};  // whole attention on each rank

TEST(CommonWeightsTest, ARankHasTheWeightsThatItWouldLoad) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const auto dir = FixtureDir(name);
    const ModelConfig config = LoadModelConfig(dir);
    for (const MeshShape& shape : {MeshShape{}, MeshShape{.tp = 4, .ep = 2}})
      ExpectLoaded(dir, config, shape, {});
    ExpectLoaded(dir, config, kWhole, {.replicated_shared_expert = true});
  }
}

TEST(CommonWeightsTest, ConvertedAndGeneratedWeightsAreTheSameToo) {
  const auto dir = FixtureDir("qwen2_moe");
  for (const char* method : {"int4", "fp8"})
    ExpectLoaded(dir, LoadModelConfig(dir, {}, {.method = method}), kWhole,
                 {.replicated_shared_expert = true, .threads = 2});
  ExpectLoaded(QuantizedDir("gptq"), LoadModelConfig(QuantizedDir("gptq")), {.tp = 2, .ep = 2}, {});
  ExpectLoaded("/nonexistent", LoadModelConfig(dir), {.tp = 4, .ep = 2},
               {.load_format = "dummy", .dummy_seed = 5});
}

// A rank may get another placement than the one that the spare knew.
TEST(CommonWeightsTest, ExpertsFollowThePlacementOfTheRank) {
  const auto dir = FixtureDir("qwen3_moe");
  const ModelConfig config = LoadModelConfig(dir);
  const int experts = config.moe->router.num_experts;
  const CommonWeights common(dir, config, kWhole, {});
  std::vector<int32_t> reversed;
  for (int e = experts - 1; e >= 0; --e) reversed.push_back(e);
  const LoadOptions moved{.placements = std::vector<ExpertPlacement>(
                              config.layers.size(), ExpertPlacement(experts, reversed))};
  for (const int rank : {0, 1}) {
    const Mesh mesh(kWhole, rank);
    EXPECT_TRUE(Listing(common.Load(mesh, moved)).all() ==
                Listing(LoadWeights(dir, config, mesh, moved)).all());
  }
}

// With whole attention and dense layers, all weights but the experts are common. A single rank has
// nothing else.
TEST(CommonWeightsTest, HoldsWhatAllRanksRequest) {
  const auto dir = FixtureDir("qwen3_moe");
  const ModelConfig config = LoadModelConfig(dir);
  const auto common = [&](const MeshShape& shape) {
    return CommonWeights(dir, config, shape, {}).bytes();
  };
  const size_t all = LoadWeights(dir, config, Mesh(), {}).bytes_mapped;
  EXPECT_EQ(common({}), all);
  const size_t rank0 = LoadWeights(dir, config, Mesh(kWhole, 0), {}).bytes_mapped;
  EXPECT_EQ(common(kWhole), 2 * rank0 - all);  // experts are divided, the others are not
  EXPECT_LT(common({.tp = 2, .ep = 2}), common(kWhole));
  EXPECT_GT(common({.tp = 2, .ep = 2}), 0u);
}

TEST(CommonWeightsTest, ReportsProgressAndMissingFiles) {
  const ModelConfig config = LoadModelConfig(FixtureDir("qwen3_moe"));
  size_t last = 0, total = 0;
  LoadOptions options{.load_format = "dummy"};
  options.progress = [&](size_t done, size_t of) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
  };
  const CommonWeights dummy("/nonexistent", config, {.tp = 2, .ep = 2}, options);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(last, total);
  EXPECT_THROW(CommonWeights("/nonexistent", config, {}, {}), Error);
}

}  // namespace
}  // namespace switchyard
