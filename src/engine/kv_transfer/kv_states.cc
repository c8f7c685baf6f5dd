#include "engine/kv_transfer/kv_states.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "model/linear_layout.h"

namespace switchyard {
namespace {

// Floats of a key head's part of a state: (inputs of the convolution, states of its value heads).
std::pair<int64_t, int64_t> HeadFloats(const LinearAttentionConfig& c) {
  const int64_t values = c.group() * c.value_dim;
  return {(c.conv_width - 1) * (2 * c.key_dim + values), values * c.key_dim};
}

void CopyFloats(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Copies the channels of the key heads that both shards have. Where these are in a row depends on
// the number of heads of the rank.
void CopyInputs(const LinearAttentionConfig& c, const KvStateShard& from, const KvStateShard& to,
                Range heads) {
  const LinearLayout source(c, from.key_heads.size()), target(c, to.key_heads.size());
  struct Part {
    LinearLayout::Part from, to;
    int64_t width = 0;
  };
  const std::array<Part, 3> parts = {Part{source.q, target.q, c.key_dim},
                                     Part{source.k, target.k, c.key_dim},
                                     Part{source.v, target.v, source.values}};
  for (int64_t row = 0; row + 1 < c.conv_width; ++row) {
    const float* const in = from.inputs + row * source.mixed_width;
    float* const out = to.inputs + row * target.mixed_width;
    for (const Part& part : parts)
      for (int64_t head = heads.begin; head < heads.end; ++head)
        CopyFloats(in + part.from.first + (head - from.key_heads.begin) * part.from.stride,
                   out + part.to.first + (head - to.key_heads.begin) * part.to.stride, part.width);
  }
}

}  // namespace

int64_t KvStateFormat::HeadBytes() const {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  if (!linear) return whole_floats * kFloat;
  const auto [inputs, heads] = HeadFloats(*linear);
  return (inputs + heads) * kFloat;
}

void CopyKvState(const KvStateFormat& format, std::span<const KvStateShard> from,
                 std::span<const KvStateShard> to) {
  if (!format.linear) {
    CHECK(!from.empty());
    for (const KvStateShard& target : to)
      CopyFloats(from.front().inputs, target.inputs, format.whole_floats);
    return;
  }
  const LinearAttentionConfig& config = *format.linear;
  const int64_t of_head = HeadFloats(config).second;
  for (const KvStateShard& target : to) {
    int64_t copied = 0;
    for (const KvStateShard& source : from) {
      const Range heads{std::max(source.key_heads.begin, target.key_heads.begin),
                        std::min(source.key_heads.end, target.key_heads.end)};
      if (heads.size() <= 0) continue;
      CopyInputs(config, source, target, heads);
      CopyFloats(source.heads + (heads.begin - source.key_heads.begin) * of_head,
                 target.heads + (heads.begin - target.key_heads.begin) * of_head,
                 heads.size() * of_head);
      copied += heads.size();
    }
    CHECK_EQ(copied, target.key_heads.size());
  }
}

KvStateShard CanonicalState(const KvStateFormat& format, std::span<std::byte> memory) {
  CHECK_GE(std::ssize(memory), format.Bytes());
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(float), 0u);
  auto* const inputs = reinterpret_cast<float*>(memory.data());
  const int64_t of_inputs =
      format.linear ? format.heads() * HeadFloats(*format.linear).first : format.whole_floats;
  return {.inputs = inputs, .heads = inputs + of_inputs, .key_heads = {0, format.heads()}};
}

}  // namespace switchyard
