#include <algorithm>
#include <cmath>

#include "model/linear_layout.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

constexpr std::string_view kKeys =
    "hidden_size, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, "
    "linear_value_head_dim, linear_conv_kernel_dim";

// The projections of the key heads `heads`.
void BuildProjections(Parts& parts, const std::string& prefix, Range heads,
                      LinearAttentionWeights* w) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const int64_t keys = c.key_heads * c.key_dim, values = c.value_heads * c.value_dim;
  const int64_t of_head = c.group() * c.value_dim;
  const auto rows = [&](const std::string& name, int64_t n, int64_t first, int64_t per_head) {
    return parts.Rows(prefix + name, n, parts.config().hidden,
                      {first + heads.begin * per_head, first + heads.end * per_head}, false, kKeys);
  };
  if (!c.separate) {
    const int64_t per_head = 2 * c.key_dim + 2 * of_head;
    w->in = {rows(names.linear_qkvz, c.key_heads * per_head, 0, per_head)};
    w->gates = {rows(names.linear_ba, 2 * c.value_heads, 0, 2 * c.group())};
    return;
  }
  w->in = {rows(names.linear_qkv, 2 * keys + values, 0, c.key_dim),
           rows(names.linear_qkv, 2 * keys + values, keys, c.key_dim),
           rows(names.linear_qkv, 2 * keys + values, 2 * keys, of_head),
           rows(names.linear_z, values, 0, of_head)};
  w->gates = {rows(names.linear_b, c.value_heads, 0, c.group()),
              rows(names.linear_a, c.value_heads, 0, c.group())};
}

// The weights of the convolution by row, and by channel in the order of LinearLayout's mixed rows.
// The checkpoint has [channels, 1, width], the channels of all q heads, then of k, then of v.
Tensor BuildConv(Parts& parts, const std::string& name, Range heads) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const LinearLayout at(c, heads.size());
  const int64_t keys = c.key_heads * c.key_dim;
  Tensor conv = Tensor::Empty(DType::kF32, {c.conv_width, at.mixed_width});
  const auto read = [&](int64_t first, int64_t per_head, LinearLayout::Part to) {
    const Range part = {first + heads.begin * per_head, first + heads.end * per_head};
    const Tensor from = parts.Vector({.name = name,
                                      .n = (2 * keys + c.value_heads * c.value_dim) * c.conv_width,
                                      .range = part * c.conv_width,
                                      .kernel = c.conv_width,
                                      .keys = kKeys});
    for (int64_t i = 0; i < part.size(); ++i)
      for (int64_t j = 0; j < c.conv_width; ++j)
        conv.data<float>()[j * at.mixed_width + to.first + i / per_head * to.stride +
                           i % per_head] =
            from.span<float>()[static_cast<size_t>(i * c.conv_width + j)];
  };
  read(0, c.key_dim, at.q);
  read(keys, c.key_dim, at.k);
  read(2 * keys, at.values, at.v);
  return conv;
}

}  // namespace

LinearAttentionWeights BuildLinearAttention(Parts& parts, const std::string& prefix) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const Range heads = LinearKeyHeads(c, parts.mesh()), values = heads * c.group();
  const auto vector = [&](const std::string& name) {
    return parts.Vector(
        {.name = prefix + name, .n = c.value_heads, .range = values, .keys = kKeys});
  };
  LinearAttentionWeights w;
  BuildProjections(parts, prefix, heads, &w);
  w.conv = BuildConv(parts, prefix + names.linear_conv + ".weight", heads);
  w.rate = vector(names.linear_rate);
  for (int64_t i = 0; i < values.size(); ++i) {
    float& rate = w.rate.data<float>()[i];
    rate = -std::exp(rate);
  }
  w.bias = vector(names.linear_bias);
  w.norm = parts.Vector({.name = prefix + names.linear_norm + ".weight",
                         .n = c.value_dim,
                         .range = {0, c.value_dim},
                         .norm = true,
                         .keys = kKeys});
  w.o = parts.Columns(prefix + names.linear_o, parts.config().hidden, c.value_heads * c.value_dim,
                      values * c.value_dim, false, kKeys);
  return w;
}

}  // namespace switchyard
