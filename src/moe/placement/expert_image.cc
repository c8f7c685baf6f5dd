#include "moe/placement/expert_image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

// Byte range, as offset and size, of a view's rows [begin, end) in the stored array.
struct Extent {
  size_t begin = 0, size = 0;
};

int64_t RowBytes(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kF32:
      return w.stored_k * 4;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return w.stored_k * 2;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return w.stored_k;
    case WeightFormat::kInt4Group:
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return w.stored_k / 2;
    default:
      return 0;
  }
}

// Returns the number of rows that share scales, and the size in bytes of these scales.
std::pair<int64_t, int64_t> ScaleRows(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kFp8Block:
      return {kFp8BlockSize, CeilDiv(w.stored_k, kFp8BlockSize) * 4};
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return {1, 4};
    case WeightFormat::kInt4Group:
      return {1, CeilDiv(w.stored_k, w.group_size) * 4};
    case WeightFormat::kMxfp4:
      return {1, CeilDiv(w.stored_k, kMxfp4BlockSize)};
    case WeightFormat::kNvfp4:
      return {1, CeilDiv(w.stored_k, kNvfp4BlockSize)};
    default:
      return {1, 0};
  }
}

// The fields of a view without its pointers, and the byte ranges of its arrays.
struct ViewHead {
  WeightView view;                 // view of the copy; row0 is relative to its first row
  std::array<Extent, 3> arrays{};  // extents of data, scales and zeros in the stored arrays
};

// Panels are copied as a whole. Their scales are interleaved with the codes.
ViewHead HeadOfPanels(const WeightView& w) {
  ViewHead head{.view = w};
  const int64_t bytes = PanelBytes(w.format, w.group_size, w.stored_k);
  const int64_t first = w.row0 / kPanelHeight, end = CeilDiv(w.row0 + w.n, kPanelHeight);
  head.view.row0 -= first * kPanelHeight;
  head.arrays[0] = {static_cast<size_t>(first * bytes), static_cast<size_t>((end - first) * bytes)};
  return head;
}

ViewHead HeadOf(const WeightView& w) {
  if (HasPanels(w.format)) return HeadOfPanels(w);
  ViewHead head{.view = w};
  const auto [rows_per_scale, scale_bytes] = ScaleRows(w);
  const int64_t first = w.row0 / rows_per_scale * rows_per_scale;
  const int64_t end = w.n == 0 ? first : w.row0 + (w.n - 1) * w.row_step + 1;
  head.view.row0 -= first;
  const auto extent = [](int64_t begin, int64_t stop, int64_t bytes) {
    return Extent{static_cast<size_t>(begin * bytes), static_cast<size_t>((stop - begin) * bytes)};
  };
  head.arrays[0] = extent(first, end, RowBytes(w));
  head.arrays[1] = extent(first / rows_per_scale, CeilDiv(end, rows_per_scale), scale_bytes);
  if (w.zeros) head.arrays[2] = extent(first, end, scale_bytes / 4);
  return head;
}

// Serialized header of a view. It is copied as plain bytes, because all ranks run the same binary
// on the same architecture.
struct Wire {
  WeightFormat format;
  ActivationFormat activation;
  int32_t group_size;
  float global_scale, input_scale;
  int64_t stored_k, row0, row_step, col0, n, k;
  std::array<size_t, 3> sizes;
};
struct Head {
  std::array<Wire, 3> views;      // gate, up, down
  std::array<int64_t, 3> biases;  // size of each bias in floats; 0: no bias
  bool gate_is_up;                // Activation::kRelu2: only `up` is stored
};

bool SameMatrix(const WeightView& a, const WeightView& b) {
  return a.data != nullptr && a.data == b.data && a.row0 == b.row0 && a.row_step == b.row_step &&
         a.col0 == b.col0 && a.n == b.n && a.k == b.k;
}

size_t Align(size_t bytes) {
  return (bytes + ExpertImage::kAlignment - 1) / ExpertImage::kAlignment * ExpertImage::kAlignment;
}

}  // namespace

ExpertImage::ExpertImage(OwnedExpert expert) : expert_(std::move(expert)) {
  const kernels::ExpertWeights& e = expert_.weights;
  Head head{};
  head_.resize(sizeof head);
  parts_.push_back({0, head_});
  bytes_ = Align(sizeof head);
  const auto add = [&](const void* array, Extent extent) {
    if (extent.size == 0) return;
    parts_.push_back({bytes_, {static_cast<const std::byte*>(array) + extent.begin, extent.size}});
    bytes_ += Align(extent.size);
  };
  const std::array views = {&e.gate, &e.up, &e.down};
  head.gate_is_up = SameMatrix(e.gate, e.up);
  for (size_t i = head.gate_is_up ? 1 : 0; i < views.size(); ++i) {
    const WeightView& w = *views[i];
    const auto [copy, arrays] = HeadOf(w);
    head.views[i] = {w.format,      w.activation, w.group_size, w.global_scale,
                     w.input_scale, w.stored_k,   copy.row0,    w.row_step,
                     w.col0,        w.n,          w.k,          {}};
    const std::array<const void*, 3> stored = {w.data, w.scales, w.zeros};
    for (size_t a = 0; a < stored.size(); ++a) {
      head.views[i].sizes[a] = arrays[a].size;
      add(stored[a], arrays[a]);
    }
  }
  const std::array biases = {std::pair(e.gate_bias, e.gate.n), std::pair(e.up_bias, e.up.n),
                             std::pair(e.down_bias, e.down.n)};
  for (size_t i = 0; i < biases.size(); ++i) {
    if (!biases[i].first) continue;
    head.biases[i] = biases[i].second;
    add(biases[i].first, {0, biases[i].second * sizeof(float)});
  }
  std::memcpy(head_.data(), &head, sizeof head);
}

void ExpertImage::Copy(size_t begin, std::span<std::byte> out) const {
  CHECK_LE(begin + out.size(), bytes_);
  size_t at = begin;
  const size_t end = begin + out.size();
  for (const Part& part : parts_) {
    const size_t part_end = part.begin + part.bytes.size();
    if (part_end <= at) continue;
    if (part.begin >= end) break;
    if (part.begin > at) {
      std::memset(out.data() + (at - begin), 0, part.begin - at);
      at = part.begin;
    }
    const size_t size = std::min(end, part_end) - at;
    std::memcpy(out.data() + (at - begin), part.bytes.data() + (at - part.begin), size);
    at += size;
  }
  std::memset(out.data() + (at - begin), 0, end - at);
}

OwnedExpert ExpertFromImage(std::shared_ptr<const std::byte> run, size_t size) {
  Head head;
  CHECK_LE(sizeof head, size);
  std::memcpy(&head, run.get(), sizeof head);
  size_t at = Align(sizeof head);
  const auto take = [&](size_t bytes) -> const void* {
    if (bytes == 0) return nullptr;
    const std::byte* array = run.get() + at;
    at += Align(bytes);
    CHECK_LE(at, size);
    return array;
  };
  OwnedExpert expert{.owner = run};
  kernels::ExpertWeights& e = expert.weights;
  const std::array views = {&e.gate, &e.up, &e.down};
  for (size_t i = head.gate_is_up ? 1 : 0; i < views.size(); ++i) {
    const Wire& w = head.views[i];
    WeightView& view = *views[i];
    view = {.format = w.format,
            .group_size = w.group_size,
            .global_scale = w.global_scale,
            .activation = w.activation,
            .input_scale = w.input_scale,
            .stored_k = w.stored_k,
            .row0 = w.row0,
            .row_step = w.row_step,
            .col0 = w.col0,
            .n = w.n,
            .k = w.k,
            .owner = run};
    view.data = take(w.sizes[0]);
    view.scales = take(w.sizes[1]);
    view.zeros = take(w.sizes[2]);
  }
  if (head.gate_is_up) e.gate = e.up;
  e.gate_bias = static_cast<const float*>(take(head.biases[0] * sizeof(float)));
  e.up_bias = static_cast<const float*>(take(head.biases[1] * sizeof(float)));
  e.down_bias = static_cast<const float*>(take(head.biases[2] * sizeof(float)));
  return expert;
}

}  // namespace switchyard
