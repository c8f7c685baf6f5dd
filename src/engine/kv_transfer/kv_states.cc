#include "engine/kv_transfer/kv_states.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/linear_layout.h"

namespace switchyard {
namespace {

// Floats of a key head's part of a state: (inputs of the convolution, states of its value heads).
std::pair<int64_t, int64_t> HeadFloats(const LinearAttentionConfig& c) {
  const int64_t values = c.group() * c.value_dim;
  return {(c.conv_width - 1) * (2 * c.key_dim + values), values * c.key_dim};
}

KvCopy FloatsCopy(const float* from, float* to, int64_t count) {
  return {.to = reinterpret_cast<std::byte*>(to),
          .from = reinterpret_cast<const std::byte*>(from),
          .bytes = count * static_cast<int64_t>(sizeof(float))};
}

// Calls `visit` with copies of the channels of the key heads that both shards have. Where these are
// in a row depends on the number of heads of the rank.
template <typename Visit>
void VisitInputs(const LinearAttentionConfig& c, const KvStateShard& from, const KvStateShard& to,
                 Range heads, const Visit& visit) {
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
        visit(FloatsCopy(in + part.from.first + (head - from.key_heads.begin) * part.from.stride,
                         out + part.to.first + (head - to.key_heads.begin) * part.to.stride,
                         part.width));
  }
}

template <typename Visit>
void VisitState(const KvStateFormat& format, std::span<const KvStateShard> from,
                std::span<const KvStateShard> to, const Visit& visit) {
  if (!format.linear) {
    CHECK(!from.empty());
    for (const KvStateShard& target : to)
      visit(FloatsCopy(from.front().inputs, target.inputs, format.whole_floats));
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
      VisitInputs(config, source, target, heads, visit);
      visit(FloatsCopy(source.heads + (heads.begin - source.key_heads.begin) * of_head,
                       target.heads + (heads.begin - target.key_heads.begin) * of_head,
                       heads.size() * of_head));
      copied += heads.size();
    }
    CHECK_EQ(copied, target.key_heads.size());
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
                 std::span<const KvStateShard> to, KvMover* mover) {
  if (!mover) return VisitState(format, from, to, [](const KvCopy& copy) { copy.Run(); });
  std::vector<KvCopy> copies;
  VisitState(format, from, to, [&](const KvCopy& copy) {
    if (copies.empty() || !copies.back().Append(copy)) copies.push_back(copy);
  });
  mover->Copy(copies);
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
