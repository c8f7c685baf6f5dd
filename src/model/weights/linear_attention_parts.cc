#include <algorithm>
#include <cmath>

#include "model/weights/parts.h"

namespace switchyard {
namespace {

constexpr std::string_view kKeys =
    "hidden_size, linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, "
    "linear_value_head_dim, linear_conv_kernel_dim";

// The weights of the convolution by row, and by channel in the order of LinearAttentionWeights.
// The checkpoint has [channels, 1, width], the channels of all q heads, then of k, then of v.
Tensor BuildConv(Parts& parts, const std::string& name, Range heads) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const int64_t keys = c.key_heads * c.key_dim, values = c.group() * c.value_dim;
  const int64_t own = 2 * c.key_dim + values, channels = heads.size() * own;
  const auto read = [&](int64_t first, int64_t per_head) {
    const Range part = {first + heads.begin * per_head, first + heads.end * per_head};
    return parts.Vector({.name = name,
                         .n = (2 * keys + c.value_heads * c.value_dim) * c.conv_width,
                         .range = part * c.conv_width,
                         .kernel = c.conv_width,
                         .keys = kKeys});
  };
  Tensor conv = Tensor::Empty(DType::kF32, {c.conv_width, channels});
  const auto copy = [&](const Tensor& from, int64_t per_head, int64_t first) {
    for (int64_t i = 0; i < heads.size() * per_head; ++i)
      for (int64_t j = 0; j < c.conv_width; ++j)
        conv.data<float>()[j * channels + i / per_head * own + first + i % per_head] =
            from.span<float>()[static_cast<size_t>(i * c.conv_width + j)];
  };
  copy(read(0, c.key_dim), c.key_dim, 0);
  copy(read(keys, c.key_dim), c.key_dim, c.key_dim);
  copy(read(2 * keys, values), values, 2 * c.key_dim);
  return conv;
}

}  // namespace

LinearAttentionWeights BuildLinearAttention(Parts& parts, const std::string& prefix) {
  const LinearAttentionConfig& c = *parts.config().linear;
  const TensorNames& names = parts.names();
  const int64_t hidden = parts.config().hidden;
  const Range heads = LinearKeyHeads(c, parts.mesh()), values = heads * c.group();
  const int64_t of_head = 2 * c.key_dim + 2 * c.group() * c.value_dim;
  const auto vector = [&](const std::string& name) {
    return parts.Vector(
        {.name = prefix + name, .n = c.value_heads, .range = values, .keys = kKeys});
  };
  LinearAttentionWeights w;
  w.qkvz = parts.Rows(prefix + names.linear_qkvz, c.key_heads * of_head, hidden, heads * of_head,
                      false, kKeys);
  w.ba = parts.Rows(prefix + names.linear_ba, 2 * c.value_heads, hidden, values * 2, false, kKeys);
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
  w.o = parts.Columns(prefix + names.linear_o, hidden, c.value_heads * c.value_dim,
                      values * c.value_dim, false, kKeys);
  return w;
}

}  // namespace switchyard
