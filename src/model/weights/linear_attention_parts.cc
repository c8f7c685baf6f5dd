#include <algorithm>
#include <cmath>

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
      return "hidden_size, linear_attn_config.num_heads, linear_attn_config.head_dim, "
             "linear_attn_config.short_conv_kernel_size";
    default:
      return "hidden_size, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, "
             "linear_value_head_dim, linear_conv_kernel_dim";
  }
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
    if (c_.separate) return BuildSeparate(w);
    const int64_t per_head = 2 * c_.key_dim + 2 * of_head_;
    w->in = {Rows(names_.linear_qkvz, c_.key_heads * per_head, 0, per_head)};
    w->gates = {Rows(names_.linear_ba, 2 * c_.value_heads, 0, 2 * c_.group())};
  }

 private:
  void BuildSeparate(LinearAttentionWeights* w) {
    const int64_t n = 2 * keys_ + values_;
    w->in = {Rows(names_.linear_qkv, n, 0, c_.key_dim), Rows(names_.linear_qkv, n, keys_, c_.key_dim),
             Rows(names_.linear_qkv, n, 2 * keys_, of_head_),
             Rows(names_.linear_z, values_, 0, of_head_)};
    w->gates = {Rows(names_.linear_b, c_.value_heads, 0, c_.group()),
                Rows(names_.linear_a, c_.value_heads, 0, c_.group())};
  }

  void BuildKeyDelta(LinearAttentionWeights* w) {
    w->in = {Rows(names_.q, keys_, 0, c_.key_dim), Rows(names_.k, keys_, 0, c_.key_dim),
             Rows(names_.v, values_, 0, of_head_)};
    w->gates = {Rows(names_.linear_b, c_.value_heads, 0, c_.group())};
    for (const std::string* name : {&names_.linear_a_low, &names_.linear_z_low})
      w->low_in.push_back(parts_.Rows(prefix_ + *name, c_.gate_rank, parts_.config().hidden,
                                      {0, c_.gate_rank}, false, KeysOf(c_)));
    const int64_t decays = c_.group() * c_.decays();  // of a key head
    w->low_a = OfLow(names_.linear_a, decays);
    w->low_z = OfLow(names_.linear_z, of_head_);
  }

  // Rows first + [heads · per_head] of the linear `name` [n, hidden].
  LinearWeight Rows(const std::string& name, int64_t n, int64_t first, int64_t per_head) {
    return parts_.Rows(prefix_ + name, n, parts_.config().hidden,
                       {first + heads_.begin * per_head, first + heads_.end * per_head}, false,
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

// The weights of the convolution by row, and by channel in the order of LinearLayout's mixed rows.
// The checkpoint has [channels, 1, width]: one tensor with the channels of all q heads, then of k,
// then of v; or one tensor of each.
Tensor BuildConv(Parts& parts, const std::string& prefix, Range heads) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const LinearLayout at(c, heads.size());
  const int64_t keys = c.key_heads * c.key_dim, values = c.value_heads * c.value_dim;
  const bool joined = !names.linear_conv.empty();
  Tensor conv = Tensor::Empty(DType::kF32, {c.conv_width, at.mixed_width});
  const auto read = [&](const std::string& own, int64_t n, int64_t first, int64_t per_head,
                        LinearLayout::Part to) {
    const int64_t begin = joined ? first : 0;
    const Range part = {begin + heads.begin * per_head, begin + heads.end * per_head};
    const Tensor from =
        parts.Vector({.name = prefix + (joined ? names.linear_conv : own) + ".weight",
                      .n = (joined ? 2 * keys + values : n) * c.conv_width,
                      .range = part * c.conv_width,
                      .kernel = c.conv_width,
                      .keys = KeysOf(c)});
    for (int64_t i = 0; i < part.size(); ++i)
      for (int64_t j = 0; j < c.conv_width; ++j)
        conv.data<float>()[j * at.mixed_width + to.first + i / per_head * to.stride +
                           i % per_head] =
            from.span<float>()[static_cast<size_t>(i * c.conv_width + j)];
  };
  read(names.linear_q_conv, keys, 0, c.key_dim, at.q);
  read(names.linear_k_conv, keys, keys, c.key_dim, at.k);
  read(names.linear_v_conv, values, 2 * keys, at.values, at.v);
  return conv;
}

}  // namespace

LinearAttentionWeights BuildLinearAttention(Parts& parts, const std::string& prefix) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const Range heads = LinearKeyHeads(c, parts.mesh()), values = heads * c.group();
  LinearAttentionWeights w;
  Projections(parts, prefix, heads).Build(&w);
  w.conv = BuildConv(parts, prefix, heads);
  w.rate = parts.Vector({.name = prefix + names.linear_rate,
                         .n = c.value_heads,
                         .range = values,
                         .of_heads = c.rule == StateRule::kKeyDelta,
                         .keys = KeysOf(c)});
  for (int64_t i = 0; i < values.size(); ++i) {
    float& rate = w.rate.data<float>()[i];
    rate = -std::exp(rate);
  }
  w.bias = parts.Vector({.name = prefix + names.linear_bias,
                         .n = c.value_heads * c.decays(),
                         .range = values * c.decays(),
                         .keys = KeysOf(c)});
  w.norm = parts.Vector({.name = prefix + names.linear_norm + ".weight",
                         .n = c.value_dim,
                         .range = {0, c.value_dim},
                         .norm = true,
                         .keys = KeysOf(c)});
  w.o = parts.Columns(prefix + names.linear_o, parts.config().hidden, c.value_heads * c.value_dim,
                      values * c.value_dim, false, KeysOf(c));
  return w;
}

}  // namespace switchyard
