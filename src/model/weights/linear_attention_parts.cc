#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/state_rule.h"
#include "model/linear_layout.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

using kernels::StateRule;

// The keys of config.json that give the sizes, for messages.
std::string_view KeysOf(const LinearAttentionConfig& c) {
  switch (c.rule) {
    case StateRule::kKeyDelta:
      if (c.gate_rank == 0)
        return "hidden_size, num_attention_heads, head_dim, short_conv_kernel_size";
      return "hidden_size, linear_attn_config.num_heads, linear_attn_config.head_dim, "
             "linear_attn_config.short_conv_kernel_size";
    case StateRule::kMamba2:
      return "hidden_size, n_groups, mamba_num_heads, mamba_head_dim, ssm_state_size, conv_kernel";
    case StateRule::kFixed:
      return "hidden_size, num_kv_heads_for_linear_attn";
    case StateRule::kDelta:
      break;
  }
  return "hidden_size, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, "
         "linear_value_head_dim, linear_conv_kernel_dim";
}

// The projections of the key heads `heads`.
class Projections {
 public:
  Projections(Parts& parts, const std::string& prefix, Range heads)
      : parts_(parts),
        names_(parts.names()),
        c_(*parts.config().linear),
        prefix_(prefix),
        heads_(heads),
        keys_(c_.key_heads * c_.key_dim),
        values_(c_.value_heads * c_.value_dim),
        of_head_(c_.group() * c_.value_dim) {}

  void Build(LinearAttentionWeights* w) {
    if (c_.rule == StateRule::kKeyDelta) return BuildKeyDelta(w);
    if (c_.rule == StateRule::kMamba2) return BuildMamba(w);
    if (c_.separate || c_.rule == StateRule::kFixed) return BuildSeparate(w);
    const int64_t per_head = 2 * c_.key_dim + 2 * of_head_;
    w->in = {Rows(names_.linear_qkvz, c_.key_heads * per_head, 0, per_head)};
    w->gates = {Rows(names_.linear_ba, 2 * c_.value_heads, 0, 2 * c_.group())};
  }

 private:
  void BuildSeparate(LinearAttentionWeights* w) {
    const int64_t n = 2 * keys_ + values_;
    const bool bias = c_.projection_bias;
    w->in = {Rows(names_.linear_qkv, n, 0, c_.key_dim, bias),
             Rows(names_.linear_qkv, n, keys_, c_.key_dim, bias),
             Rows(names_.linear_qkv, n, 2 * keys_, of_head_, bias),
             Rows(names_.linear_z, values_, 0, of_head_, bias)};
    if (c_.rule == StateRule::kFixed) return;
    w->gates = {Rows(names_.linear_b, c_.value_heads, 0, c_.group()),
                Rows(names_.linear_a, c_.value_heads, 0, c_.group())};
  }

  void BuildKeyDelta(LinearAttentionWeights* w) {
    w->in = {Rows(names_.q, keys_, 0, c_.key_dim), Rows(names_.k, keys_, 0, c_.key_dim),
             Rows(names_.v, values_, 0, of_head_)};
    w->gates = {Rows(names_.linear_b, c_.value_heads, 0, c_.group())};
    const int64_t decays = c_.group() * c_.decays();  // of a key head
    if (c_.gate_rank == 0) {
      w->in.push_back(Rows(names_.linear_z, values_, 0, of_head_));
      w->gates.push_back(Rows(names_.linear_a, c_.key_heads * decays, 0, decays));
      return;
    }
    for (const std::string* name : {&names_.linear_a_low, &names_.linear_z_low})
      w->low_in.push_back(parts_.Rows(prefix_ + *name, c_.gate_rank, parts_.config().hidden,
                                      {0, c_.gate_rank}, false, KeysOf(c_)));
    w->low_a = OfLow(names_.linear_a, decays);
    w->low_z = OfLow(names_.linear_z, of_head_);
  }

  // The rows of z, x (v), B (k), C (q) and the steps (a).
  void BuildMamba(LinearAttentionWeights* w) {
    const int64_t n = 2 * values_ + 2 * keys_ + c_.value_heads;
    const auto rows = [&](int64_t first, int64_t per_head) {
      return Rows(names_.linear_all, n, first, per_head, c_.projection_bias);
    };
    w->in = {rows(2 * values_ + keys_, c_.key_dim), rows(2 * values_, c_.key_dim),
             rows(values_, of_head_), rows(0, of_head_)};
    w->gates = {rows(n - c_.value_heads, c_.group())};
  }

  // Rows first + [heads · per_head] of the linear `name` [n, hidden].
  LinearWeight Rows(const std::string& name, int64_t n, int64_t first, int64_t per_head,
                    bool bias = false) {
    return parts_.Rows(prefix_ + name, n, parts_.config().hidden,
                       {first + heads_.begin * per_head, first + heads_.end * per_head}, bias,
                       KeysOf(c_));
  }
  LinearWeight OfLow(const std::string& name, int64_t per_head) {
    return parts_.Rows(prefix_ + name, c_.key_heads * per_head, c_.gate_rank, heads_ * per_head,
                       false, KeysOf(c_));
  }

  Parts& parts_;
  const TensorNames& names_;
  const LinearAttentionConfig& c_;
  const std::string& prefix_;
  const Range heads_;
  const int64_t keys_, values_, of_head_;
};

// The channels of the convolution of q, k or v: in a tensor of their own, or from channel `first`
// on in the tensor of all channels.
struct ConvPart {
  const std::string& own;  // name of the tensor
  int64_t channels, first, per_head;
  LinearLayout::Part to;  // in a mixed row
};

std::vector<ConvPart> ConvParts(const LinearAttentionConfig& c, const TensorNames& names,
                                const LinearLayout& at) {
  const int64_t keys = c.key_heads * c.key_dim, values = c.value_heads * c.value_dim;
  const bool reversed = c.rule == StateRule::kMamba2;  // x (v), B (k), C (q)
  return {{names.linear_q_conv, keys, reversed ? values + keys : 0, c.key_dim, at.q},
          {names.linear_k_conv, keys, reversed ? values : keys, c.key_dim, at.k},
          {names.linear_v_conv, values, reversed ? 0 : 2 * keys, at.values, at.v}};
}

// The weights [conv_width, mixed_width] or the bias [mixed_width] of the convolution, in the order
// of LinearLayout's mixed rows. The checkpoint has weights [channels, 1, width].
Tensor BuildConv(Parts& parts, const std::string& prefix, Range heads, bool bias) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const LinearLayout at(c, heads.size());
  const bool joined = !names.linear_conv.empty();
  const int64_t all = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim;
  const int64_t rows = bias ? 1 : c.conv_width;
  Tensor conv = Tensor::Empty(DType::kF32, {rows, at.mixed_width});
  for (const ConvPart& part : ConvParts(c, names, at)) {
    const int64_t begin = joined ? part.first : 0, per_head = part.per_head;
    const Range channels = {begin + heads.begin * per_head, begin + heads.end * per_head};
    const std::string name = prefix + (joined ? names.linear_conv : part.own);
    const Tensor from = parts.Vector({.name = name + (bias ? ".bias" : ".weight"),
                                      .n = (joined ? all : part.channels) * rows,
                                      .range = channels * rows,
                                      .kernel = bias ? 0 : rows,
                                      .keys = KeysOf(c)});
    for (int64_t i = 0; i < channels.size(); ++i)
      for (int64_t j = 0; j < rows; ++j)
        conv.data<float>()[j * at.mixed_width + part.to.first + i / per_head * part.to.stride +
                           i % per_head] = from.span<float>()[static_cast<size_t>(i * rows + j)];
  }
  return conv;
}

// The slopes of `heads` heads in Press, Smith and Lewis, "Train Short, Test Long"
// (https://arxiv.org/abs/2108.12409), negative, of the heads `range`. They are powers of 2^(−8 / n)
// for n heads, a power of two. Other numbers of heads take n from the power below, and the rest
// from every other slope of the power above.
Tensor FixedRates(int64_t heads, Range range, float factor) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  Tensor rates = Tensor::Empty(DType::kF32, {range.size()});
  for (int64_t i = 0; i < range.size(); ++i) {
    const int64_t head = range.begin + i;
    const int64_t n = head < below ? below : 2 * below;
    const int64_t power = head < below ? head + 1 : 2 * (head - below) + 1;
    const double slope = std::exp2(-8.0 * static_cast<double>(power) / static_cast<double>(n));
    rates.data<float>()[i] = -static_cast<float>(slope) * factor;
  }
  return rates;
}

// What precedes and follows the states of Lightning Attention: norms of heads, rates, and the norm
// of groups.
void BuildFixed(Parts& parts, int64_t layer, const std::string& prefix, Range heads,
                LinearAttentionWeights* w) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const auto norm = [&](const std::string& name, int64_t n, Range range) {
    return parts.Vector({.name = prefix + name + ".weight",
                         .n = n,
                         .range = range,
                         .norm = true,
                         .keys = KeysOf(c)});
  };
  const TensorNames& names = parts.names();
  w->rate = FixedRates(c.key_heads, heads, parts.config().layers[layer].decay);
  w->norm = norm(names.linear_norm, c.value_heads * c.value_dim, heads * c.value_dim);
  if (!c.qk_norm) return;
  w->q_norm = norm(names.linear_q_norm, c.key_dim, {0, c.key_dim});
  w->k_norm = norm(names.linear_k_norm, c.key_dim, {0, c.key_dim});
}

// The convolution, the decays and the norm of the other rules.
void BuildLearned(Parts& parts, const std::string& prefix, Range heads, LinearAttentionWeights* w) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const Range values = heads * c.group();
  w->conv = BuildConv(parts, prefix, heads, /*bias=*/false);
  if (c.conv_bias) w->conv_bias = BuildConv(parts, prefix, heads, /*bias=*/true);
  w->rate = parts.Vector({.name = prefix + names.linear_rate,
                          .n = c.value_heads,
                          .range = values,
                          .of_heads = c.gate_rank > 0,  // Kimi-Linear
                          .keys = KeysOf(c)});
  for (int64_t i = 0; i < values.size(); ++i) {
    float& rate = w->rate.data<float>()[i];
    rate = -std::exp(rate);
  }
  w->bias = parts.Vector({.name = prefix + names.linear_bias,
                          .n = c.value_heads * c.decays(),
                          .range = values * c.decays(),
                          .keys = KeysOf(c)});
  const bool mamba = c.rule == StateRule::kMamba2;
  if (mamba)
    w->skip = parts.Vector({.name = prefix + names.linear_skip,
                            .n = c.value_heads,
                            .range = values,
                            .keys = KeysOf(c)});
  w->norm = parts.Vector({.name = prefix + names.linear_norm + ".weight",
                          .n = (mamba ? c.value_heads : 1) * c.value_dim,
                          .range = mamba ? values * c.value_dim : Range{0, c.value_dim},
                          .norm = true,
                          .keys = KeysOf(c)});
}

}  // namespace

LinearAttentionWeights BuildLinearAttention(Parts& parts, int64_t layer,
                                            const std::string& prefix) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const Range heads = LinearKeyHeads(c, parts.mesh()), values = heads * c.group();
  LinearAttentionWeights w;
  Projections(parts, prefix, heads).Build(&w);
  if (c.rule == StateRule::kFixed) {
    BuildFixed(parts, layer, prefix, heads, &w);
  } else {
    BuildLearned(parts, prefix, heads, &w);
  }
  w.o = parts.Columns(prefix + names.linear_o, parts.config().hidden, c.value_heads * c.value_dim,
                      values * c.value_dim, c.projection_bias, KeysOf(c));
  return w;
}

}  // namespace switchyard
