// Scales of an e4m3 cache in checkpoints.
#include <cstring>

#include "model/weights/assembled.h"

namespace switchyard {
namespace {

using testing::ChangedCheckpoint;
using ::testing::HasSubstr;
using testing::RawTensor;

RawTensor ScalesTensor(const std::vector<float>& values, std::vector<int64_t> shape) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {"F32", std::move(shape), std::move(bytes)};
}

using NamedScales = std::vector<std::pair<std::string, RawTensor>>;

// A checkpoint with tensors of these names in the attention of every layer.
class CheckpointWithScales : public ChangedCheckpoint {
 public:
  CheckpointWithScales(const std::string& fixture, const NamedScales& scales)
      : ChangedCheckpoint(fixture) {
    config.quantization.cache_scales = true;
    for (int64_t layer = 0; layer < config.num_layers(); ++layer)
      for (const auto& [name, tensor] : scales)
        tensors["model.layers." + std::to_string(layer) + ".self_attn." + name] = tensor;
  }
};

std::vector<float> FloatsOfScales(const Tensor& t) {
  if (!t.defined()) return {};
  return {t.span<float>().begin(), t.span<float>().end()};
}

TEST(CacheScales, ManyNamesHaveOneMeaning) {
  const auto k = ScalesTensor({0.5f}, {1}), v = ScalesTensor({0.25f}, {});
  const std::vector<NamedScales> all = {
      {{"k_scale", k}, {"v_scale", v}},
      {{"attn.k_scale", k}, {"attn.v_scale", v}},
      {{"k_proj.k_scale", k}, {"v_proj.v_scale", v}},
      {{"k_proj.output_scale", k}, {"v_proj.output_scale", v}},
  };
  for (const NamedScales& scales : all) {
    CheckpointWithScales c("qwen3", scales);
    const ModelWeights w = LoadWeights(c.Write(), c.config, Mesh(), {});
    const auto heads = static_cast<size_t>(c.config.kv_heads(0));
    for (const LayerWeights& layer : w.layers) {
      EXPECT_EQ(FloatsOfScales(layer.grouped.k_scales), std::vector<float>(heads, 0.5f))
          << scales[0].first;
      EXPECT_EQ(FloatsOfScales(layer.grouped.v_scales), std::vector<float>(heads, 0.25f));
    }
    EXPECT_EQ(c.CheckMessage(), "no error");
    c.config.quantization.cache_scales = false;  // another cache
    EXPECT_FALSE(LoadWeights(c.Write(), c.config, Mesh(), {}).layers[0].grouped.k_scales.defined());
  }
  CheckpointWithScales both("qwen3", {{"kv_scale", k}});
  const ModelWeights w = LoadWeights(both.Write(), both.config, Mesh(), {});
  EXPECT_EQ(FloatsOfScales(w.layers[1].grouped.v_scales),
            FloatsOfScales(w.layers[1].grouped.k_scales));
  EXPECT_EQ(FloatsOfScales(w.layers[1].grouped.v_scales)[0], 0.5f);
}

TEST(CacheScales, ARankHasThoseOfItsHeads) {
  const std::vector<float> k = {1.0f, 2.0f}, v = {0.5f, 4.0f};
  CheckpointWithScales c(
      "qwen3_moe", {{"k_scale", ScalesTensor(k, {2})}, {"v_scale", ScalesTensor(v, {2, 1, 1})}});
  const auto dir = c.Write();
  for (const int tp : {2, 4}) {  // with four ranks, two have the same head
    for (int rank = 0; rank < tp; ++rank) {
      const ModelWeights w = LoadWeights(dir, c.config, Mesh({.tp = tp, .ep = tp}, rank), {});
      EXPECT_EQ(FloatsOfScales(w.layers[0].grouped.k_scales), std::vector<float>{k[rank * 2 / tp]});
      EXPECT_EQ(FloatsOfScales(w.layers[0].grouped.v_scales), std::vector<float>{v[rank * 2 / tp]});
    }
  }
}

TEST(CacheScales, ALatentHasTheScaleOfKeys) {
  CheckpointWithScales c("deepseek_v3", {{"k_proj.k_scale", ScalesTensor({0.5f}, {1})},
                                         {"v_proj.v_scale", ScalesTensor({0.25f}, {1})}});
  const ModelWeights w = LoadWeights(c.Write(), c.config, Mesh(), {});
  EXPECT_EQ(FloatsOfScales(w.layers[0].latent.cache_scale), std::vector<float>{0.5f});
}

// That output has queries too.
TEST(CacheScales, TheScaleOfAJointOutputIsNotThatOfTheCache) {
  ChangedCheckpoint c("bailing_moe_v2", "families");
  c.config.quantization.cache_scales = true;
  const auto add = [&](const std::string& name, float scale) {
    for (int64_t layer = 0; layer < c.config.num_layers(); ++layer)
      c.tensors["model.layers." + std::to_string(layer) + ".attention." + name] =
          ScalesTensor({scale}, {1});
  };
  add("query_key_value.output_scale", 0.5f);
  add("query_key_value.output_zero_point", 0.0f);
  EXPECT_FALSE(LoadWeights(c.Write(), c.config, Mesh(), {}).layers[0].grouped.k_scales.defined());
  add("query_key_value.k_scale", 0.25f);
  add("query_key_value.v_scale", 2.0f);
  const ModelWeights w = LoadWeights(c.Write(), c.config, Mesh(), {});
  const auto heads = static_cast<size_t>(c.config.kv_heads(0));
  EXPECT_EQ(FloatsOfScales(w.layers[0].grouped.k_scales), std::vector<float>(heads, 0.25f));
  EXPECT_EQ(FloatsOfScales(w.layers[0].grouped.v_scales), std::vector<float>(heads, 2.0f));
}

TEST(CacheScales, WithoutThemTheScaleIsOne) {
  CheckpointWithScales c("qwen3", {});
  const ModelWeights w = LoadWeights(c.Write(), c.config, Mesh(), {});
  EXPECT_FALSE(w.layers[0].grouped.k_scales.defined());
  EXPECT_FALSE(w.layers[0].grouped.v_scales.defined());
}

TEST(CacheScales, OtherFormsAreRefusedByName) {
  const auto one = ScalesTensor({0.5f}, {1});
  const auto message = [](const NamedScales& scales) {
    return CheckpointWithScales("qwen3", scales).LoadMessage();
  };
  EXPECT_THAT(message({{"k_scale", one}}),
              HasSubstr("has \"model.layers.0.self_attn.k_scale\", but only keys or values"));
  EXPECT_THAT(message({{"k_scale", ScalesTensor({1, 2, 3}, {3})}, {"v_scale", one}}),
              HasSubstr("self_attn.k_scale\" has shape [3]; want one scale, or"));
  EXPECT_THAT(message({{"k_scale", one}, {"v_scale", ScalesTensor({0.0f}, {1})}}),
              HasSubstr("self_attn.v_scale\" holds 0; want positive scales"));
  EXPECT_THAT(message({{"k_scale", one}, {"v_scale", {"I32", {1}, std::string(4, '\1')}}}),
              HasSubstr("self_attn.v_scale\" is int32; want float32"));
  EXPECT_THAT(message({{"k_scale", one}, {"v_scale", one}, {"k_zero_point", one}}),
              HasSubstr("has zero points of the cache, \"model.layers.0.self_attn.k_zero_point\""));
}

}  // namespace
}  // namespace switchyard
