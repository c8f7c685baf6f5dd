// For tests: reassembles the full model from the shards of all ranks, and modifies checkpoints.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/linear_layout.h"
#include "model/weights.h"
#include "model/weights/testing.h"

namespace switchyard::testing {

using Values = std::vector<float>;
using Roles = std::map<std::string, Values>;  // role -> elements of the full tensor

inline const std::vector<std::string> kFixtures = {
    "mixtral",         "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
    "deepseek_v3_fp8", "gpt_oss",   "glm4_moe",  "llama", "qwen3"};

inline std::filesystem::path FixtureDir(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}
// The checkpoints of tests/data/families.
inline std::vector<std::filesystem::path> FamilyDirs() {
  std::vector<std::filesystem::path> all;
  const auto folder = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families";
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_directory()) all.push_back(entry.path());
  return all;
}
// A checkpoint of tests/data/quantized.
inline std::filesystem::path QuantizedDir(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "quantized" / name;
}

// Reassembles the shards of all ranks of a mesh, role by role.
class Assembler {
 public:
  Assembler(const ModelConfig& config, MeshShape shape, std::vector<ModelWeights> ranks)
      : config_(config), shape_(shape), ranks_(std::move(ranks)) {}

  Roles Assemble() {
    Rows("embedding", [](const auto& w) { return w.embedding; });
    Rows("head", [](const auto& w) { return w.head; });
    Same("final_norm", [](const auto& w) { return w.final_norm; });
    Vectors("head_bias", [](const auto& w) { return w.head_bias; });
    Streams("head_streams.", [](const auto& w) { return w.head_streams; });
    for (int64_t i = 0; i < config_.num_layers(); ++i) Layer(i);
    return std::move(out_);
  }

 private:
  template <typename F>
  void Rows(const std::string& role, F part, int step = 1) {
    Values& all = out_[role];
    for (size_t r = 0; r < ranks_.size(); r += step) Append(&all, Dequantize(part(ranks_[r])));
  }
  // Concatenates the columns of consecutive ranks.
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
    Same(p + "attention_output_norm",
         [&](const auto& w) { return layer(w).attention_output_norm; });
    Same(p + "output_norm", [&](const auto& w) { return layer(w).feed_forward_output_norm; });
    if (config_.layers[i].linear) {
      Linear(p, layer);
    } else if (!config_.layers[i].mixer) {
      EXPECT_FALSE(layer(ranks_[0]).input_norm.defined());
    } else if (config_.attention.kind == AttentionConfig::Kind::kGrouped) {
      Grouped(p, layer, config_.kv_heads(i));
    } else if (config_.attention.kind == AttentionConfig::Kind::kCompressed) {
      Compressed(p, layer);
    } else {
      Latent(p, layer);
    }
    Streams(p + "attention_streams.", [&](const auto& w) { return layer(w).attention_streams; });
    Streams(p + "feed_forward_streams.",
            [&](const auto& w) { return layer(w).feed_forward_streams; });
    if (config_.layers[i].dense())
      FeedForward(p + "dense.", [&](const auto& w) { return layer(w).dense; });
    Same(p + "latent_in", [&](const auto& w) { return layer(w).latent_in.w; });
    Same(p + "latent_out", [&](const auto& w) { return layer(w).latent_out.w; });
    if (!config_.layers[i].moe) return;
    Same(p + "router", [&](const auto& w) { return layer(w).moe.router.w; });
    Same(p + "shared_gate", [&](const auto& w) { return layer(w).moe.shared_gate; });
    if (config_.moe->shared_intermediate != 0) {
      FeedForward(p + "shared.", [&](const auto& w) { return layer(w).moe.shared; });
    }
    for (const auto& [role, pointer] : {std::pair{"router_bias", &RouterWeights::bias},
                                        {"correction", &RouterWeights::correction_bias}}) {
      const float* first = layer(ranks_[0]).moe.router.*pointer;
      if (first) Append(&out_[p + role], {first, first + config_.moe->router.num_logits()});
    }
    if (config_.layers[i].by_token) TokenExperts(p, layer);
    Experts(p, layer);
  }

  template <typename L>
  void Grouped(const std::string& p, L layer, int64_t kv_heads) {
    const int tp = shape_.tp;
    const int step = std::max<int>(1, tp / static_cast<int>(kv_heads));
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
    if (config_.attention.gate && !config_.attention.gate_in_q)
      Rows(p + "gate", [&](const auto& w) { return layer(w).grouped.gate.w; });
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
  void Linear(const std::string& p, L layer) {
    for (size_t i = 0; i < layer(ranks_[0]).linear.in.size(); ++i)
      Rows(p + "in" + std::to_string(i), [&](const auto& w) { return layer(w).linear.in[i].w; });
    for (size_t i = 0; i < layer(ranks_[0]).linear.gates.size(); ++i)
      Rows(p + "gate" + std::to_string(i),
           [&](const auto& w) { return layer(w).linear.gates[i].w; });
    for (size_t i = 0; i < layer(ranks_[0]).linear.low_in.size(); ++i)
      Same(p + "low" + std::to_string(i),
           [&](const auto& w) { return layer(w).linear.low_in[i].w; });
    if (config_.linear->gate_rank > 0) {
      Rows(p + "low_a", [&](const auto& w) { return layer(w).linear.low_a.w; });
      Rows(p + "low_z", [&](const auto& w) { return layer(w).linear.low_z.w; });
    }
    Columns(p + "o", [&](const auto& w) { return layer(w).linear.o.w; });
    Vectors(p + "rate", [&](const auto& w) { return layer(w).linear.rate; });
    Vectors(p + "bias", [&](const auto& w) { return layer(w).linear.bias; });
    Vectors(p + "skip", [&](const auto& w) { return layer(w).linear.skip; });
    Same(p + "q_norm", [&](const auto& w) { return layer(w).linear.q_norm; });
    Same(p + "k_norm", [&](const auto& w) { return layer(w).linear.k_norm; });
    if (!kernels::IsDeltaRule(config_.linear->rule)) {
      Vectors(p + "norm", [&](const auto& w) { return layer(w).linear.norm; });
    } else {
      Same(p + "norm", [&](const auto& w) { return layer(w).linear.norm; });
    }
    if (!config_.linear->convolves()) return;
    Values& conv = out_[p + "conv"];  // of q, then of k, then of v, channel by channel
    const LinearAttentionConfig& c = *config_.linear;
    const LinearLayout at(c, c.key_heads / shape_.tp);
    const auto add = [&](LinearLayout::Part part, int64_t size) {
      for (const ModelWeights& w : ranks_)
        for (int64_t i = 0; i < c.key_heads / shape_.tp * size; ++i)
          for (int64_t j = 0; j < c.conv_width; ++j)
            conv.push_back(
                layer(w).linear.conv.template data<float>()[j * at.mixed_width + part.first +
                                                            i / size * part.stride + i % size]);
    };
    add(at.q, c.key_dim);
    add(at.k, c.key_dim);
    add(at.v, at.values);
  }

  template <typename L>
  void Latent(const std::string& p, L layer) {
    Same(p + "q_a", [&](const auto& w) { return layer(w).latent.q_a.w; });
    Same(p + "q_a_norm", [&](const auto& w) { return layer(w).latent.q_a_norm; });
    Same(p + "kv_a", [&](const auto& w) { return layer(w).latent.kv_a.w; });
    Same(p + "kv_a_norm", [&](const auto& w) { return layer(w).latent.kv_a_norm; });
    if (layer(ranks_[0]).latent.index) {
      Same(p + "index.q", [&](const auto& w) { return layer(w).latent.index->q.w; });
      Same(p + "index.k", [&](const auto& w) { return layer(w).latent.index->k.w; });
      Same(p + "index.k_norm", [&](const auto& w) { return layer(w).latent.index->k_norm; });
      Same(p + "index.weights", [&](const auto& w) { return layer(w).latent.index->weights; });
    }
    Rows(p + "q", [&](const auto& w) {
      return config_.attention.q_lora_rank ? layer(w).latent.q_b.w : layer(w).latent.q.w;
    });
    Columns(p + "o", [&](const auto& w) { return layer(w).latent.o.w; });
    if (config_.attention.gate)
      Rows(p + "gate", [&](const auto& w) { return layer(w).latent.gate.w; });
    for (const ModelWeights& w : ranks_) {
      const LatentAttentionWeights& latent = layer(w).latent;
      EXPECT_EQ(static_cast<int64_t>(latent.k_up.size()), config_.attention.heads / shape_.tp);
      for (size_t h = 0; h < latent.k_up.size(); ++h) {
        Append(&out_[p + "kv_b"], Dequantize(latent.k_up[h]));
        Append(&out_[p + "kv_b"], Dequantize(latent.v_up[h]));
      }
    }
  }

  template <typename L>
  void Compressed(const std::string& p, L layer) {
    const auto at = [&](const ModelWeights& w) -> const CompressedAttentionWeights& {
      return layer(w).compressed;
    };
    Same(p + "q_a", [&](const auto& w) { return at(w).q_a.w; });
    Same(p + "q_a_norm", [&](const auto& w) { return at(w).q_a_norm; });
    Same(p + "q_norm", [&](const auto& w) { return at(w).q_norm; });
    Same(p + "kv", [&](const auto& w) { return at(w).kv.w; });
    Same(p + "kv_norm", [&](const auto& w) { return at(w).kv_norm; });
    Rows(p + "q", [&](const auto& w) { return at(w).q_b.w; });
    Vectors(p + "sinks", [&](const auto& w) { return at(w).sinks; });
    Columns(p + "o", [&](const auto& w) { return at(w).o.w; });
    for (const ModelWeights& w : ranks_) {
      EXPECT_EQ(static_cast<int64_t>(at(w).o_a.size()),
                config_.attention.output_groups / shape_.tp);
      for (const WeightView& group : at(w).o_a) Append(&out_[p + "o_a"], Dequantize(group));
    }
    if (at(ranks_[0]).entries)
      Entries(p + "entries.", [&](const auto& w) { return *at(w).entries; });
    if (!at(ranks_[0]).index_entries) return;
    Entries(p + "index_entries.", [&](const auto& w) { return *at(w).index_entries; });
    Same(p + "index_q", [&](const auto& w) { return at(w).index_q.w; });
    Same(p + "index_weights", [&](const auto& w) { return at(w).index_weights; });
  }

  template <typename F>
  void Entries(const std::string& p, F part) {
    Same(p + "rows", [&](const auto& w) { return part(w).rows.w; });
    Same(p + "gates", [&](const auto& w) { return part(w).gates.w; });
    Same(p + "bias", [&](const auto& w) { return part(w).bias; });
    Same(p + "norm", [&](const auto& w) { return part(w).norm; });
  }

  template <typename F>
  void Streams(const std::string& p, F part) {
    Same(p + "logits", [&](const auto& w) { return part(w).logits; });
    Same(p + "base", [&](const auto& w) { return part(w).base; });
    Same(p + "scale", [&](const auto& w) { return part(w).scale; });
  }

  // The experts of each token id, which every rank has.
  template <typename L>
  void TokenExperts(const std::string& p, L layer) {
    for (const ModelWeights& w : ranks_) {
      const RouterWeights& router = layer(w).moe.router;
      ASSERT_NE(router.token_experts, nullptr);
      EXPECT_EQ(router.token_rows, config_.vocab_size);
      const int64_t n = router.token_rows * config_.moe->router.top_k;
      const Values ids(router.token_experts, router.token_experts + n);
      if (&w == ranks_.data()) out_[p + "token_experts"] = ids;
      EXPECT_EQ(out_[p + "token_experts"], ids);
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
    for (int ep = 0; ep < shape_.ep; ++ep) {
      const Range mine = ExpertsOfRank(config_.moe->router.num_experts, shape_.ep, ep);
      for (int e = mine.begin; e < mine.end; ++e) {
        const std::string name = p + "experts." + std::to_string(e) + ".";
        std::vector<WeightView> down;
        for (int r = ep * moe_tp; r < (ep + 1) * moe_tp; ++r) {
          const auto& experts = layer(ranks_[r]).moe.experts;
          ASSERT_EQ(static_cast<int>(experts.size()), mine.size());
          const kernels::ExpertWeights& w = experts[e - mine.begin];
          Append(&out_[name + "gate"], Dequantize(w.gate));
          Append(&out_[name + "up"], Dequantize(w.up));
          down.push_back(w.down);
          if (w.gate_bias) Append(&out_[name + "gate_bias"], {w.gate_bias, w.gate_bias + w.gate.n});
          if (w.up_bias) Append(&out_[name + "up_bias"], {w.up_bias, w.up_bias + w.up.n});
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
  Roles out_;
};

inline Roles Assemble(const std::filesystem::path& dir, const ModelConfig& config, MeshShape shape,
                      const LoadOptions& options = {}) {
  std::vector<ModelWeights> ranks;
  for (int r = 0; r < shape.tp; ++r) {
    ranks.push_back(LoadWeights(dir, config, Mesh(shape, r), options));
  }
  return Assembler(config, shape, std::move(ranks)).Assemble();
}

inline void ExpectSame(const Roles& a, const Roles& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [role, values] : a) {
    ASSERT_TRUE(b.contains(role)) << role;
    EXPECT_TRUE(values == b.at(role)) << role;
  }
}

inline Values FloatsOf(const RawTensor& t) {
  const auto shape = t.shape;
  const DType dtype = *ParseSafetensorsDType(t.dtype);
  const Tensor f = Tensor::View(t.bytes.data(), dtype, shape).ToFloat32();
  return {f.span<float>().begin(), f.span<float>().end()};
}

inline std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// A copy of a checkpoint whose tensors a test may modify.
class ChangedCheckpoint {
 public:
  // `folder`: under tests/data.
  explicit ChangedCheckpoint(const std::string& name, const std::string& folder = "fixtures") {
    const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / folder / name;
    tensors = ReadSafetensors(dir);
    CopyConfig(dir, dir_.path());
    config = LoadModelConfig(dir);
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
  TempDir dir_;
};

}  // namespace switchyard::testing
