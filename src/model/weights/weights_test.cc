#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"
#include "model/weights/shard.h"
#include "model/weights/source.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::Dequantize;
using ::testing::HasSubstr;
using testing::RawTensor;
using testing::RawTensors;
using testing::ReadBytes;
using testing::ReadSafetensors;
using testing::TempDir;
using testing::WriteBytes;
using testing::WriteSafetensors;
using Values = std::vector<float>;
using Model = std::map<std::string, Values>;  // role -> elements of the whole

const std::vector<std::string> kFixtures = {
    "mixtral",         "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
    "deepseek_v3_fp8", "gpt_oss",   "glm4_moe",  "llama", "qwen3"};

std::filesystem::path FixtureDir(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

// Puts the parts of all ranks of a mesh together again, role by role.
class Assembler {
 public:
  Assembler(const ModelConfig& config, MeshShape shape, std::vector<ModelWeights> ranks)
      : config_(config), shape_(shape), ranks_(std::move(ranks)) {}

  Model Assemble() {
    Rows("embedding", [](const auto& w) { return w.embedding; });
    Rows("head", [](const auto& w) { return w.head; });
    Same("final_norm", [](const auto& w) { return w.final_norm; });
    for (int64_t i = 0; i < config_.num_layers(); ++i) Layer(i);
    return std::move(out_);
  }

 private:
  template <typename F>
  void Rows(const std::string& role, F part, int step = 1) {
    Values& all = out_[role];
    for (size_t r = 0; r < ranks_.size(); r += step) Append(&all, Dequantize(part(ranks_[r])));
  }
  // Columns of consecutive ranks stand side by side.
  template <typename F>
  void Columns(const std::string& role, F part) {
    std::vector<WeightView> views;
    for (const ModelWeights& w : ranks_) views.push_back(part(w));
    out_[role] = SideBySide(views);
  }
  template <typename F>
  void Vectors(const std::string& role, F part, int step = 1) {
    for (size_t r = 0; r < ranks_.size(); r += step) {
      const Tensor t = part(ranks_[r]);
      if (t.defined()) Append(&out_[role], {t.span<float>().begin(), t.span<float>().end()});
    }
  }
  template <typename F>
  void Same(const std::string& role, F part) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const auto p = part(ranks_[r]);
      Values v;
      if constexpr (std::is_same_v<std::decay_t<decltype(p)>, Tensor>) {
        if (!p.defined()) return;
        v.assign(p.template span<float>().begin(), p.template span<float>().end());
      } else {
        if (!p.defined()) return;
        v = Dequantize(p);
      }
      if (r == 0) out_[role] = v;
      EXPECT_EQ(out_[role], v) << role << " of rank " << r;
    }
  }

  void Layer(int64_t i) {
    const std::string p = std::to_string(i) + ".";
    const auto layer = [i](const ModelWeights& w) -> const LayerWeights& { return w.layers[i]; };
    Same(p + "input_norm", [&](const auto& w) { return layer(w).input_norm; });
    Same(p + "post_norm", [&](const auto& w) { return layer(w).post_attention_norm; });
    if (config_.attention.kind == AttentionConfig::Kind::kGrouped) {
      Grouped(p, layer);
    } else {
      Latent(p, layer);
    }
    if (!config_.layers[i].moe) {
      FeedForward(p + "dense.", [&](const auto& w) { return layer(w).dense; });
      return;
    }
    Same(p + "router", [&](const auto& w) { return layer(w).moe.router.w; });
    Same(p + "shared_gate", [&](const auto& w) { return layer(w).moe.shared_gate; });
    if (config_.moe->shared_intermediate != 0) {
      FeedForward(p + "shared.", [&](const auto& w) { return layer(w).moe.shared; });
    }
    for (const auto& [role, pointer] : {std::pair{"router_bias", &RouterWeights::bias},
                                        {"correction", &RouterWeights::correction_bias}}) {
      const float* first = layer(ranks_[0]).moe.router.*pointer;
      if (first) Append(&out_[p + role], {first, first + config_.moe->router.num_experts});
    }
    Experts(p, layer);
  }

  template <typename L>
  void Grouped(const std::string& p, L layer) {
    const int tp = shape_.tp;
    const int step = std::max<int>(1, tp / static_cast<int>(config_.attention.kv_heads));
    Rows(p + "q", [&](const auto& w) { return layer(w).grouped.q.w; });
    Rows(
        p + "k", [&](const auto& w) { return layer(w).grouped.k.w; }, step);
    Rows(
        p + "v", [&](const auto& w) { return layer(w).grouped.v.w; }, step);
    Columns(p + "o", [&](const auto& w) { return layer(w).grouped.o.w; });
    Vectors(p + "q.bias", [&](const auto& w) { return layer(w).grouped.q.bias; });
    Vectors(
        p + "k.bias", [&](const auto& w) { return layer(w).grouped.k.bias; }, step);
    Vectors(
        p + "v.bias", [&](const auto& w) { return layer(w).grouped.v.bias; }, step);
    Vectors(p + "o.bias", [&](const auto& w) { return layer(w).grouped.o.bias; });
    Vectors(p + "sinks", [&](const auto& w) { return layer(w).grouped.sinks; });
    if (config_.attention.qk_norm == AttentionConfig::QkNorm::kWhole) {
      Vectors(p + "q_norm", [&](const auto& w) { return layer(w).grouped.q_norm; });
      Vectors(
          p + "k_norm", [&](const auto& w) { return layer(w).grouped.k_norm; }, step);
    } else {
      Same(p + "q_norm", [&](const auto& w) { return layer(w).grouped.q_norm; });
      Same(p + "k_norm", [&](const auto& w) { return layer(w).grouped.k_norm; });
    }
  }

  template <typename L>
  void Latent(const std::string& p, L layer) {
    Same(p + "q_a", [&](const auto& w) { return layer(w).latent.q_a.w; });
    Same(p + "q_a_norm", [&](const auto& w) { return layer(w).latent.q_a_norm; });
    Same(p + "kv_a", [&](const auto& w) { return layer(w).latent.kv_a.w; });
    Same(p + "kv_a_norm", [&](const auto& w) { return layer(w).latent.kv_a_norm; });
    Rows(p + "q", [&](const auto& w) {
      return config_.attention.q_lora_rank ? layer(w).latent.q_b.w : layer(w).latent.q.w;
    });
    Columns(p + "o", [&](const auto& w) { return layer(w).latent.o.w; });
    for (const ModelWeights& w : ranks_) {
      const LatentAttentionWeights& latent = layer(w).latent;
      EXPECT_EQ(static_cast<int64_t>(latent.k_up.size()), config_.attention.heads / shape_.tp);
      for (size_t h = 0; h < latent.k_up.size(); ++h) {
        Append(&out_[p + "kv_b"], Dequantize(latent.k_up[h]));
        Append(&out_[p + "kv_b"], Dequantize(latent.v_up[h]));
      }
    }
  }

  template <typename F>
  void FeedForward(const std::string& p, F part) {
    Rows(p + "gate", [&](const auto& w) { return part(w).gate; });
    Rows(p + "up", [&](const auto& w) { return part(w).up; });
    Columns(p + "down", [&](const auto& w) { return part(w).down; });
  }

  template <typename L>
  void Experts(const std::string& p, L layer) {
    const int moe_tp = shape_.tp / shape_.ep;
    const int64_t part = config_.moe->intermediate / moe_tp;
    for (int ep = 0; ep < shape_.ep; ++ep) {
      const ExpertRange mine = ExpertsOfRank(config_.moe->router.num_experts, shape_.ep, ep);
      for (int e = mine.begin; e < mine.end; ++e) {
        const std::string name = p + "experts." + std::to_string(e) + ".";
        std::vector<WeightView> down;
        for (int r = ep * moe_tp; r < (ep + 1) * moe_tp; ++r) {
          const auto& experts = layer(ranks_[r]).moe.experts;
          ASSERT_EQ(static_cast<int>(experts.size()), mine.end - mine.begin);
          const kernels::ExpertWeights& w = experts[e - mine.begin];
          Append(&out_[name + "gate"], Dequantize(w.gate));
          Append(&out_[name + "up"], Dequantize(w.up));
          down.push_back(w.down);
          if (w.gate_bias) Append(&out_[name + "gate_bias"], {w.gate_bias, w.gate_bias + part});
          if (w.up_bias) Append(&out_[name + "up_bias"], {w.up_bias, w.up_bias + part});
          if (w.down_bias) {
            Append(&out_[name + "down_bias"], {w.down_bias, w.down_bias + config_.hidden});
          }
        }
        out_[name + "down"] = SideBySide(down);
      }
    }
  }

  static void Append(Values* to, const Values& from) {
    to->insert(to->end(), from.begin(), from.end());
  }
  static Values SideBySide(const std::vector<WeightView>& views) {
    Values all;
    for (int64_t row = 0; row < views[0].n; ++row) {
      for (const WeightView& v : views) Append(&all, Dequantize(v.Rows(row, row + 1)));
    }
    return all;
  }

  const ModelConfig& config_;
  const MeshShape shape_;
  const std::vector<ModelWeights> ranks_;
  Model out_;
};

Model Assemble(const std::filesystem::path& dir, const ModelConfig& config, MeshShape shape,
               const LoadOptions& options = {}) {
  std::vector<ModelWeights> ranks;
  for (int r = 0; r < shape.tp; ++r) {
    ranks.push_back(LoadWeights(dir, config, Mesh(shape, r), options));
    EXPECT_EQ(ranks.back().bytes_mapped,
              WeightBytesPerRank(config, Mesh(shape, r), options.whole_shared_expert));
  }
  return Assembler(config, shape, std::move(ranks)).Assemble();
}

void ExpectSame(const Model& a, const Model& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [role, values] : a) {
    ASSERT_TRUE(b.contains(role)) << role;
    EXPECT_TRUE(values == b.at(role)) << role;
  }
}

Values FloatsOf(const RawTensor& t) {
  const auto shape = t.shape;
  const DType dtype = *ParseSafetensorsDType(t.dtype);
  const Tensor f = Tensor::View(t.bytes.data(), dtype, shape).ToFloat32();
  return {f.span<float>().begin(), f.span<float>().end()};
}

TEST(LoadWeights, OneRankHoldsTheFilesTensors) {
  const struct {
    const char *fixture, *role, *tensor;
  } cases[] = {
      {"mixtral", "0.experts.3.gate", "model.layers.0.block_sparse_moe.experts.3.w1.weight"},
      {"mixtral", "1.experts.7.up", "model.layers.1.block_sparse_moe.experts.7.w3.weight"},
      {"mixtral", "1.experts.0.down", "model.layers.1.block_sparse_moe.experts.0.w2.weight"},
      {"mixtral", "0.router", "model.layers.0.block_sparse_moe.gate.weight"},
      {"qwen2_moe", "0.shared.up", "model.layers.0.mlp.shared_expert.up_proj.weight"},
      {"qwen2_moe", "2.shared_gate", "model.layers.2.mlp.shared_expert_gate.weight"},
      {"qwen2_moe", "1.dense.down", "model.layers.1.mlp.down_proj.weight"},
      {"qwen2_moe", "1.k.bias", "model.layers.1.self_attn.k_proj.bias"},
      {"qwen3_moe", "2.q_norm", "model.layers.2.self_attn.q_norm.weight"},
      {"qwen3_moe", "head", "lm_head.weight"},
      {"olmoe", "1.k_norm", "model.layers.1.self_attn.k_norm.weight"},
      {"deepseek_v2", "1.q", "model.layers.1.self_attn.q_proj.weight"},
      {"deepseek_v2", "2.kv_b", "model.layers.2.self_attn.kv_b_proj.weight"},
      {"deepseek_v3", "0.q_a", "model.layers.0.self_attn.q_a_proj.weight"},
      {"deepseek_v3", "1.correction", "model.layers.1.mlp.gate.e_score_correction_bias"},
      {"deepseek_v3", "2.shared.gate", "model.layers.2.mlp.shared_experts.gate_proj.weight"},
      {"gpt_oss", "3.sinks", "model.layers.3.self_attn.sinks"},
      {"gpt_oss", "0.router_bias", "model.layers.0.mlp.router.bias"},
      {"gpt_oss", "0.o.bias", "model.layers.0.self_attn.o_proj.bias"},
      {"glm4_moe", "0.post_norm", "model.layers.0.post_attention_layernorm.weight"},
      {"llama", "head", "model.embed_tokens.weight"},
      {"qwen3", "final_norm", "model.norm.weight"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.tensor);
    const auto dir = FixtureDir(c.fixture);
    const Model model = Assemble(dir, LoadModelConfig(dir), {1, 1});
    ASSERT_TRUE(model.contains(c.role));
    EXPECT_TRUE(model.at(c.role) == FloatsOf(ReadSafetensors(dir).at(c.tensor)));
  }
}

TEST(LoadWeights, Fp8IsBytesTimesTheirBlocksScale) {
  const auto dir = FixtureDir("deepseek_v3_fp8");
  const Model model = Assemble(dir, LoadModelConfig(dir), {1, 1});
  const RawTensors raw = ReadSafetensors(dir);
  const std::string name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
  Values want = FloatsOf(raw.at(name));  // [160, 256]
  const Values scales = FloatsOf(raw.at(name + "_scale_inv"));
  for (int64_t i = 0; i < 160; ++i) {
    for (int64_t j = 0; j < 256; ++j) want[i * 256 + j] *= scales[i / 128 * 2 + j / 128];
  }
  EXPECT_TRUE(model.at("0.kv_a") == want);
}

TEST(LoadWeights, Mxfp4GateAndUpRowsAlternate) {
  const auto dir = FixtureDir("gpt_oss");
  const Model model = Assemble(dir, LoadModelConfig(dir), {1, 1});
  const RawTensors raw = ReadSafetensors(dir);
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string &blocks = raw.at(name + "_blocks").bytes,
                    &scales = raw.at(name + "_scales").bytes;
  const float codes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto element = [&](int64_t expert, int64_t row, int64_t col) {  // of [8, 128, 64]
    const int64_t at = (expert * 128 + row) * 64 + col;
    const auto byte = static_cast<uint8_t>(blocks[at / 2]);
    const int exponent = static_cast<uint8_t>(scales[at / 32]) - 127;
    return std::ldexp(codes[at % 2 ? byte >> 4 : byte & 15], exponent);
  };
  Values gate, up;
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 64; ++j) {
      gate.push_back(element(5, 2 * i, j));
      up.push_back(element(5, 2 * i + 1, j));
    }
  }
  EXPECT_TRUE(model.at("1.experts.5.gate") == gate);
  EXPECT_TRUE(model.at("1.experts.5.up") == up);
  const Values bias = FloatsOf(raw.at(name + "_bias"));
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(model.at("1.experts.5.gate_bias")[i], bias[5 * 128 + 2 * i]);
    EXPECT_EQ(model.at("1.experts.5.up_bias")[i], bias[5 * 128 + 2 * i + 1]);
  }
}

TEST(LoadWeights, PartsOfAllRanksMakeTheWhole) {
  for (const std::string& name : kFixtures) {
    const auto dir = FixtureDir(name);
    const ModelConfig config = LoadModelConfig(dir);
    const Model whole = Assemble(dir, config, {1, 1});
    for (const MeshShape shape : {MeshShape{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(name + " tp " + std::to_string(shape.tp) + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
    }
  }
}

// With heads of half the size the same tensors split eight ways.
TEST(LoadWeights, EightRanks) {
  for (const std::string name : {"qwen2_moe", "olmoe"}) {
    const auto dir = FixtureDir(name);
    json text = json::parse(ReadBytes(dir / "config.json"));
    text["num_attention_heads"] = 8;
    text["num_key_value_heads"] = name == "olmoe" ? 8 : 4;
    const ModelConfig config = ParseModelConfig(text.dump());
    const Model whole = Assemble(dir, config, {1, 1});
    for (const MeshShape shape : {MeshShape{8, 4}, {8, 1}, {8, 8}}) {
      SCOPED_TRACE(name + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
    }
  }
}

TEST(LoadWeights, WholeSharedExpertOnEveryRank) {
  const auto dir = FixtureDir("deepseek_v3");
  const ModelConfig config = LoadModelConfig(dir);
  const ModelWeights one = LoadWeights(dir, config, Mesh(), {});
  for (int r = 0; r < 2; ++r) {
    const ModelWeights two =
        LoadWeights(dir, config, Mesh({2, 2}, r), {.whole_shared_expert = true});
    EXPECT_TRUE(Dequantize(two.layers[1].moe.shared.down) ==
                Dequantize(one.layers[1].moe.shared.down));
  }
}

TEST(LoadWeights, RanksMapOnlyTheirShare) {
  const auto dir = FixtureDir("mixtral");
  const ModelConfig config = LoadModelConfig(dir);
  size_t total = 0, last = 0;
  const LoadOptions options{.progress = [&](size_t done, size_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  }};
  const ModelWeights whole = LoadWeights(dir, config, Mesh(), options);
  EXPECT_GT(total, 0u);
  EXPECT_EQ(last, total);
  const ModelWeights part = LoadWeights(dir, config, Mesh({4, 4}, 0), {});
  EXPECT_LT(part.bytes_mapped, whole.bytes_mapped / 2);
  // Views point into the mapping: a rank that has all rows copies no matrix.
  EXPECT_EQ(whole.layers[0].moe.experts[0].gate.stored_k, 64);
  EXPECT_EQ(CheckCheckpoint(dir, config), whole.bytes_mapped);
}

TEST(LoadWeights, FlagsThatDoNotSplitTheModel) {
  const auto message = [](const std::string& fixture, MeshShape shape, const char* patch = "{}") {
    const auto dir = FixtureDir(fixture);
    json text = json::parse(ReadBytes(dir / "config.json"));
    text.merge_patch(json::parse(patch));
    try {
      LoadWeights(dir, ParseModelConfig(text.dump()), Mesh(shape, 0), {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("mixtral", {8, 4}),
              HasSubstr("--tp 8 does not divide num_attention_heads 4"));
  EXPECT_THAT(message("qwen2_moe", {4, 1}, R"({"num_attention_heads": 12, "head_dim": 8,
                                               "num_key_value_heads": 3})"),
              HasSubstr("num_key_value_heads 3"));
  EXPECT_THAT(message("mixtral", {4, 1}, R"({"intermediate_size": 98})"), HasSubstr("--ep 1"));
  EXPECT_THAT(message("llama", {4, 1}, R"({"intermediate_size": 3})"),
              HasSubstr("intermediate_size 3"));
}

// A copy of a fixture whose tensors a test may change.
class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(const std::string& fixture)
      : tensors(ReadSafetensors(FixtureDir(fixture))) {
    testing::CopyConfig(FixtureDir(fixture), dir_.path());
    config = LoadModelConfig(dir_.path());
  }
  std::filesystem::path Write() {
    WriteSafetensors(dir_.path() / "model.safetensors", tensors);
    return dir_.path();
  }
  std::string LoadMessage(const LoadOptions& options = {}) {
    return MessageOf([&] { LoadWeights(Write(), config, Mesh(), options); });
  }
  std::string CheckMessage() {
    return MessageOf([&] { CheckCheckpoint(Write(), config); });
  }

  RawTensors tensors;
  ModelConfig config;

 private:
  static std::string MessageOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  TempDir dir_;
};

TEST(CheckpointErrors, MissingTensorsAreCountedAndFiveNamed) {
  ChangedCheckpoint c("mixtral");
  for (int e = 0; e < 8; ++e) {
    c.tensors.erase("model.layers.1.block_sparse_moe.experts." + std::to_string(e) + ".w2.weight");
  }
  for (const std::string& message : {c.LoadMessage(), c.CheckMessage()}) {
    EXPECT_THAT(message, HasSubstr("8 tensors"));
    EXPECT_THAT(message, HasSubstr("experts.0.w2.weight"));
    EXPECT_THAT(message, HasSubstr("experts.4.w2.weight"));
    EXPECT_THAT(message, ::testing::Not(HasSubstr("experts.5.w2.weight")));
  }
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  fp8.tensors.erase("model.layers.0.mlp.up_proj.weight_scale_inv");
  EXPECT_THAT(fp8.CheckMessage(), HasSubstr("1 tensor that config.json implies is missing: "
                                            "model.layers.0.mlp.up_proj.weight_scale_inv"));
}

TEST(CheckpointErrors, ShapesAndTypesAreHeldAgainstTheConfig) {
  ChangedCheckpoint c("qwen3");
  c.tensors["model.layers.1.self_attn.q_proj.weight"].shape = {64, 128};
  for (const std::string& message : {c.LoadMessage(), c.CheckMessage()}) {
    EXPECT_THAT(message, HasSubstr("model.layers.1.self_attn.q_proj.weight"));
    EXPECT_THAT(message, HasSubstr("[64, 128]"));
    EXPECT_THAT(message, HasSubstr("[128, 64]"));
    EXPECT_THAT(message, HasSubstr("num_attention_heads"));
  }
  ChangedCheckpoint ints("qwen3");
  ints.tensors["model.layers.0.mlp.up_proj.weight"].dtype = "I16";
  EXPECT_THAT(ints.CheckMessage(), HasSubstr("int16"));
  ChangedCheckpoint norm("qwen3");
  norm.tensors["model.norm.weight"].dtype = "I16";
  EXPECT_THAT(norm.CheckMessage(), HasSubstr("model.norm.weight"));
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  fp8.config.quantization = ModelConfig::Quantization::kNone;
  EXPECT_THAT(fp8.CheckMessage(), HasSubstr("quantization_config"));
}

TEST(CheckpointErrors, ScalesThatAreNoNumbers) {
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  const float inf = INFINITY, nan = NAN;
  std::string& scale = fp8.tensors["model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"].bytes;
  for (float bad : {inf, nan}) {
    std::memcpy(scale.data() + 4, &bad, 4);
    EXPECT_THAT(fp8.LoadMessage(), HasSubstr("experts.3.up_proj.weight_scale_inv"));
  }
  EXPECT_EQ(fp8.LoadMessage({.check_nan_scales = false}), "no error");
  // Another rank's scale is not this rank's trouble.
  LoadWeights(fp8.Write(), fp8.config, Mesh({4, 4}, 0), {});

  ChangedCheckpoint oss("gpt_oss");
  oss.tensors["model.layers.2.mlp.experts.down_proj_scales"].bytes[77] = '\xff';
  EXPECT_THAT(oss.LoadMessage(), HasSubstr("down_proj_scales"));
}

TEST(CheckpointErrors, CutFilesAreRefused) {
  ChangedCheckpoint c("qwen3");
  const auto dir = c.Write();
  const std::string whole = ReadBytes(dir / "model.safetensors");
  for (size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{8}, size_t{3}}) {
    WriteBytes(dir / "model.safetensors", whole.substr(0, size));
    EXPECT_THROW(CheckCheckpoint(dir, c.config), Error) << size;
  }
}

TEST(CheckpointVariants, ScalesInBfloat16AndMisalignedTensors) {
  ChangedCheckpoint c("deepseek_v3_fp8");
  const Model want = Assemble(c.Write(), c.config, {2, 2});
  // A first tensor of one byte moves all others to odd offsets.
  c.tensors["a"] = {"U8", {1}, "x"};
  ExpectSame(Assemble(c.Write(), c.config, {2, 2}), want);

  RawTensor& scale = c.tensors["model.layers.0.mlp.up_proj.weight_scale_inv"];  // [2, 2]
  const std::string half = std::string("\x80\x3f\x00\x40\x80\x3f\x00\x40", 8);  // 1 2 1 2
  scale = {"BF16", {2, 2}, half};
  const Model bf16 = Assemble(c.Write(), c.config, {1, 1});
  const float two[] = {1, 2, 1, 2};
  scale = {"F32", {2, 2}, std::string(reinterpret_cast<const char*>(two), 16)};
  EXPECT_TRUE(Assemble(c.Write(), c.config, {1, 1}).at("0.dense.up") == bf16.at("0.dense.up"));
}

// transformers 5's own layout: all experts of a layer in two tensors.
TEST(CheckpointVariants, FusedExperts) {
  ChangedCheckpoint c("mixtral");
  const Model want = Assemble(c.Write(), c.config, {1, 1});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    RawTensor gate_up{"F32", {8, 192, 64}, ""}, down{"F32", {8, 64, 96}, ""};
    for (int e = 0; e < 8; ++e) {
      const std::string expert = layer + "block_sparse_moe.experts." + std::to_string(e) + ".";
      gate_up.bytes +=
          c.tensors[expert + "w1.weight"].bytes + c.tensors[expert + "w3.weight"].bytes;
      down.bytes += c.tensors[expert + "w2.weight"].bytes;
      for (const char* w : {"w1", "w2", "w3"}) c.tensors.erase(expert + w + ".weight");
    }
    c.tensors[layer + "mlp.experts.gate_up_proj"] = gate_up;
    c.tensors[layer + "mlp.experts.down_proj"] = down;
    c.tensors[layer + "mlp.gate.weight"] = c.tensors[layer + "block_sparse_moe.gate.weight"];
    c.tensors.erase(layer + "block_sparse_moe.gate.weight");
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {1, 1}), want);
  ExpectSame(Assemble(c.Write(), c.config, {4, 2}), want);
}

// gpt-oss in bfloat16: [E, H, 2 I] with alternating columns, [E, I, H].
TEST(CheckpointVariants, TransposedExperts) {
  ChangedCheckpoint c("gpt_oss");
  const Model want = Assemble(c.Write(), c.config, {1, 1});
  c.config.quantization = ModelConfig::Quantization::kNone;
  for (int l = 0; l < 4; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".mlp.experts.";
    RawTensor gate_up{"BF16", {8, 64, 128}, ""}, down{"BF16", {8, 64, 64}, ""};
    const auto put = [](std::string* bytes, float x) {
      const BF16 b = ToBF16(x);  // MXFP4 values fit
      bytes->append(reinterpret_cast<const char*>(&b), 2);
    };
    for (int e = 0; e < 8; ++e) {
      const std::string role = std::to_string(l) + ".experts." + std::to_string(e) + ".";
      for (int h = 0; h < 64; ++h) {
        for (int i = 0; i < 64; ++i) {
          put(&gate_up.bytes, want.at(role + "gate")[i * 64 + h]);
          put(&gate_up.bytes, want.at(role + "up")[i * 64 + h]);
        }
      }
      for (int i = 0; i < 64; ++i) {
        for (int h = 0; h < 64; ++h) put(&down.bytes, want.at(role + "down")[h * 64 + i]);
      }
    }
    for (const char* name : {"gate_up_proj", "down_proj"}) {
      c.tensors.erase(prefix + name + "_blocks");
      c.tensors.erase(prefix + name + "_scales");
    }
    c.tensors[prefix + "gate_up_proj"] = gate_up;
    c.tensors[prefix + "down_proj"] = down;
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {1, 1}), want);
  ExpectSame(Assemble(c.Write(), c.config, {4, 2}), want);
}

// --- made-up weights ---

TEST(DummyWeights, DoNotDependOnTheMesh) {
  const LoadOptions dummy{.load_format = "dummy", .dummy_seed = 3};
  for (const std::string& name : kFixtures) {
    const ModelConfig config = LoadModelConfig(FixtureDir(name));
    const Model whole = Assemble("/nonexistent", config, {1, 1}, dummy);
    for (const MeshShape shape : {MeshShape{2, 1}, {2, 2}, {4, 2}}) {
      SCOPED_TRACE(name + " tp " + std::to_string(shape.tp) + " ep " + std::to_string(shape.ep));
      ExpectSame(Assemble("/nonexistent", config, shape, dummy), whole);
    }
  }
}

TEST(DummyWeights, DifferBySeedNameAndRowAndHaveSaneSizes) {
  for (const std::string name : {"mixtral", "qwen3_moe", "deepseek_v3_fp8", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = LoadModelConfig(FixtureDir(name));
    const Model a = Assemble("", config, {1, 1}, {.load_format = "dummy", .dummy_seed = 1});
    const Model b = Assemble("", config, {1, 1}, {.load_format = "dummy", .dummy_seed = 2});
    const std::string role = "1.experts.2.gate";
    EXPECT_FALSE(a.at(role) == b.at(role));
    EXPECT_FALSE(a.at(role) == a.at("1.experts.2.up"));
    EXPECT_FALSE(a.at(role) == a.at("1.experts.3.gate"));
    const Values& w = a.at(role);
    EXPECT_FALSE(std::equal(w.begin(), w.begin() + 64, w.begin() + config.hidden));
    double sum = 0, squares = 0;
    for (float x : w) {
      ASSERT_TRUE(std::isfinite(x));
      sum += x;
      squares += double{x} * x;
    }
    const double n = static_cast<double>(w.size()), want = 1.0 / std::sqrt(config.hidden);
    EXPECT_NEAR(sum / n, 0.0, 0.1 * want);
    EXPECT_GT(std::sqrt(squares / n), 0.6 * want);
    EXPECT_LT(std::sqrt(squares / n), 1.6 * want);
    EXPECT_EQ(a.at("final_norm")[0], 1.0f);
  }
}

TEST(DummyWeights, KeepTheCheckpointsFormats) {
  const LoadOptions dummy{.load_format = "dummy"};
  const auto load = [&](const std::string& name) {
    return LoadWeights("", LoadModelConfig(FixtureDir(name)), Mesh(), dummy);
  };
  EXPECT_EQ(load("mixtral").layers[0].moe.experts[0].gate.format, WeightFormat::kF32);
  EXPECT_EQ(load("olmoe").layers[0].moe.experts[0].gate.format, WeightFormat::kBF16);
  const ModelWeights fp8 = load("deepseek_v3_fp8");
  EXPECT_EQ(fp8.layers[1].moe.experts[0].down.format, WeightFormat::kFp8Block);
  EXPECT_EQ(fp8.layers[1].moe.router.w.format, WeightFormat::kBF16);
  EXPECT_EQ(fp8.embedding.format, WeightFormat::kBF16);
  const ModelWeights oss = load("gpt_oss");
  EXPECT_EQ(oss.layers[0].moe.experts[0].up.format, WeightFormat::kMxfp4);
  EXPECT_EQ(oss.layers[0].grouped.q.w.format, WeightFormat::kBF16);
}

TEST(LoadWeights, UnknownFormatNamesTheFlag) {
  try {
    LoadWeights("", LoadModelConfig(FixtureDir("llama")), Mesh(), {.load_format = "gguf"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--load-format gguf"));
  }
}

// --- shards ---

TEST(Shards, VocabularyRunsCoverItOnce) {
  for (int64_t vocab : {1, 5, 8, 512, 129280}) {
    for (int tp : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int r = 0; r < tp; ++r) {
        const Range rows = VocabRows(vocab, tp, r);
        EXPECT_EQ(rows.begin, next);
        EXPECT_LE(rows.size(), (vocab + tp - 1) / tp);
        next = rows.end;
      }
      EXPECT_EQ(next, vocab);
    }
  }
}

TEST(Shards, KvHeadsAreThoseOfTheQueryHeads) {
  AttentionConfig a{.heads = 16, .kv_heads = 4};
  for (int tp : {1, 2, 4, 8, 16}) {
    for (int r = 0; r < tp; ++r) {
      const Mesh mesh({tp, 1}, r);
      const Range q = QueryHeads(a, mesh), kv = KvHeads(a, mesh);
      EXPECT_EQ(kv.begin, q.begin / 4);
      EXPECT_EQ(kv.end, (q.end + 3) / 4);
    }
  }
}

}  // namespace
}  // namespace switchyard
