#include "moe/cuda/expert_weights.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/cpus.h"
#include "core/error.h"
#include "core/parallel.h"
#include "kernels/cuda/w4a16_pack.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{16} << 20;  // staging buffer of converted rows
constexpr int64_t kGemmStep = 64;                     // size alignment of GroupedGemmBf16

int64_t BytesOf(ElementType type) {
  return type == ElementType::kFp8 ? 1 : type == ElementType::kBF16 ? 2 : 4;
}

void Copy(std::byte* to, const void* from, int64_t bytes) {
  CopyToDevice(to, from, static_cast<size_t>(bytes), "copy of weights to the GPU");
}

bool Stores(const WeightView& w, ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return w.format == WeightFormat::kF32;
    case ElementType::kBF16:
      return w.format == WeightFormat::kBF16;
    case ElementType::kFp8:
      return w.format == WeightFormat::kFp8Block;
  }
  return false;
}

// Row i of the view in its stored format.
const std::byte* StoredRow(const WeightView& w, ElementType type, int64_t i) {
  const int64_t row = w.row0 + i * w.row_step;
  return static_cast<const std::byte*>(w.data) + (row * w.stored_k + w.col0) * BytesOf(type);
}

void ConvertRow(const WeightView& w, int64_t i, ElementType type, std::byte* to) {
  if (Stores(w, type)) {
    std::memcpy(to, StoredRow(w, type, i), w.k * BytesOf(type));
    return;
  }
  if (type == ElementType::kF32) return DequantizeRow(w, i, 0, w.k, reinterpret_cast<float*>(to));
  CHECK(type == ElementType::kBF16);
  static thread_local std::vector<float> values;
  values.resize(w.k);
  DequantizeRow(w, i, 0, w.k, values.data());
  auto* rounded = reinterpret_cast<BF16*>(to);
  for (int64_t j = 0; j < w.k; ++j) rounded[j] = ToBF16(values[j]);
}

// Uploads the view's rows contiguously to `to` on the device.
void UploadRows(const WeightView& w, ElementType type, std::byte* to, ThreadPool& pool) {
  const int64_t row_bytes = w.k * BytesOf(type);
  if (Stores(w, type) && w.row_step == 1 && w.stored_k == w.k)
    return Copy(to, StoredRow(w, type, 0), w.n * row_bytes);
  const int64_t rows_at_a_time = std::clamp<int64_t>(kStagingBytes / row_bytes, 1, w.n);
  std::vector<std::byte> staging(rows_at_a_time * row_bytes);
  for (int64_t first = 0; first < w.n; first += rows_at_a_time) {
    const int64_t rows = std::min(rows_at_a_time, w.n - first);
    pool.RunRanges(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        ConvertRow(w, first + i, type, staging.data() + i * row_bytes);
    });
    Copy(to + first * row_bytes, staging.data(), rows * row_bytes);
  }
}

// The block scales of a block-aligned view, [ceil(n / 128), ceil(k / 128)].
void UploadBlockScales(const WeightView& w, std::byte* to) {
  const int64_t stored_columns = CeilDiv(w.stored_k, kFp8BlockSize);
  const int64_t rows = CeilDiv(w.n, kFp8BlockSize), columns = CeilDiv(w.k, kFp8BlockSize);
  const float* from = static_cast<const float*>(w.scales) +
                      w.row0 / kFp8BlockSize * stored_columns + w.col0 / kFp8BlockSize;
  std::vector<float> scales;
  for (int64_t r = 0; r < rows; ++r)
    scales.insert(scales.end(), from + r * stored_columns, from + r * stored_columns + columns);
  Copy(to, scales.data(), std::ssize(scales) * static_cast<int64_t>(sizeof(float)));
}

// Uploads `parts` [matrices, parts per matrix]; the parts of a matrix are stacked along n.
DeviceMatrix UploadStacked(std::span<const WeightView* const> parts, int64_t parts_of_matrix,
                           ElementType type, ThreadPool& pool) {
  DeviceMatrix stacked{.type = type, .n = parts_of_matrix * parts[0]->n, .k = parts[0]->k};
  const int64_t part_bytes = parts[0]->n * stacked.k * BytesOf(type);
  const int64_t scale_bytes = CeilDiv(parts[0]->n, kFp8BlockSize) *
                              CeilDiv(stacked.k, kFp8BlockSize) *
                              static_cast<int64_t>(sizeof(float));
  stacked.data = DeviceMemory(parts.size() * part_bytes);
  if (type == ElementType::kFp8) stacked.scales = DeviceMemory(parts.size() * scale_bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightView& w = *parts[i];
    CHECK(w.n == parts[0]->n && w.k == stacked.k);
    UploadRows(w, type, stacked.data.data() + i * part_bytes, pool);
    if (type == ElementType::kFp8) UploadBlockScales(w, stacked.scales.data() + i * scale_bytes);
  }
  return stacked;
}

// As above, packed.
DeviceMatrix UploadPacked(std::span<const WeightView* const> parts, int64_t parts_of_matrix,
                          W4A16Format format, ThreadPool& pool) {
  DeviceMatrix packed{.type = ElementType::kBF16,
                      .n = parts_of_matrix * parts[0]->n,
                      .k = parts[0]->k,
                      .packed = format};
  const int64_t matrices = std::ssize(parts) / parts_of_matrix;
  const int64_t bytes = W4A16Bytes(format, packed.n, packed.k), tiles = W4A16RowTiles(packed.n);
  packed.data = DeviceMemory(matrices * bytes);
  std::vector<std::byte> records(bytes);
  std::vector<float> globals(matrices * tiles);
  for (int64_t i = 0; i < matrices; ++i) {
    PackW4A16(format, parts.subspan(i * parts_of_matrix, parts_of_matrix), records.data(),
              globals.data() + i * tiles, pool);
    Copy(packed.data.data() + i * bytes, records.data(), bytes);
  }
  if (format.kind == W4A16Kind::kNvfp4) packed.scales = UploadFloats(globals);
  return packed;
}

// The weight views of all experts; each gate precedes its up.
struct ExpertViews {
  explicit ExpertViews(std::span<const kernels::ExpertWeights> experts) {
    for (const kernels::ExpertWeights& e : experts) {
      gates_and_ups.insert(gates_and_ups.end(), {&e.gate, &e.up});
      downs.push_back(&e.down);
    }
  }
  std::vector<const WeightView*> gates_and_ups, downs;
};

std::optional<PackedExperts> FindPacked(std::span<const kernels::ExpertWeights> experts) {
  const ExpertViews views(experts);
  const auto gate_up = W4A16FormatOf(views.gates_and_ups, 2), down = W4A16FormatOf(views.downs);
  if (!gate_up || !down) return std::nullopt;
  return PackedExperts{*gate_up, *down};
}

// Appends zeros for an expert without a bias.
void AppendBias(const float* bias, int64_t n, std::vector<float>* all) {
  if (bias) {
    all->insert(all->end(), bias, bias + n);
  } else {
    all->resize(all->size() + n);
  }
}

bool HasFp8Blocks(const kernels::ExpertWeights& e) {
  for (const WeightView* w : {&e.gate, &e.up, &e.down}) {
    if (w->format != WeightFormat::kFp8Block || w->row_step != 1) return false;
    for (const int64_t at : {w->row0, w->col0, w->n, w->k})
      if (at % kFp8BlockSize != 0) return false;
  }
  return true;
}

}  // namespace

ExpertArithmetic ChooseArithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                  bool hopper, bool packs) {
  const auto all_stored = [&](WeightFormat format) {
    return std::ranges::all_of(experts, [&](const kernels::ExpertWeights& e) {
      return e.gate.format == format && e.up.format == format && e.down.format == format;
    });
  };
  if (dtype == DType::kF32)
    return {.weights = all_stored(WeightFormat::kBF16) ? ElementType::kBF16 : ElementType::kF32};
  if (hopper && std::ranges::all_of(experts, HasFp8Blocks))
    return {ElementType::kFp8, ElementType::kBF16, true, ElementType::kFp8};
  const int64_t hidden = experts[0].gate.k, intermediate = experts[0].gate.n;
  const bool fits = hidden % kGemmStep == 0 && intermediate % kGemmStep == 0;
  ExpertArithmetic arithmetic = {ElementType::kBF16, ElementType::kBF16, hopper && fits,
                                 ElementType::kBF16};
  if (packs && arithmetic.tensor_cores) arithmetic.packed = FindPacked(experts);
  return arithmetic;
}

DeviceExperts::DeviceExperts(std::span<const kernels::ExpertWeights> from,
                             ExpertArithmetic arithmetic_in)
    : arithmetic(arithmetic_in),
      experts(static_cast<int>(from.size())),
      hidden(from[0].gate.k),
      intermediate(from[0].gate.n) {
  if (hidden % 4 != 0 || intermediate % 4 != 0)
    throw Invalid(
        "experts with {} hidden and {} intermediate elements on this rank: GPUs require multiples "
        "of 4",
        hidden, intermediate);
  ThreadPool pool(std::clamp(AllowedCpuCount(), 1, 8));
  const ExpertViews views(from);
  std::vector<float> upper_bias, lower_bias;
  bool has_upper_bias = false, has_lower_bias = false;
  for (const kernels::ExpertWeights& e : from) {
    has_upper_bias |= e.gate_bias || e.up_bias;
    has_lower_bias |= e.down_bias != nullptr;
    AppendBias(e.gate_bias, intermediate, &upper_bias);
    AppendBias(e.up_bias, intermediate, &upper_bias);
    AppendBias(e.down_bias, hidden, &lower_bias);
  }
  if (arithmetic.packed) {
    gate_up = UploadPacked(views.gates_and_ups, 2, arithmetic.packed->gate_up, pool);
    down = UploadPacked(views.downs, 1, arithmetic.packed->down, pool);
  } else {
    gate_up = UploadStacked(views.gates_and_ups, 2, arithmetic.weights, pool);
    down = UploadStacked(views.downs, 1, arithmetic.weights, pool);
  }
  if (has_upper_bias) gate_up_bias = UploadFloats(upper_bias);
  if (has_lower_bias) down_bias = UploadFloats(lower_bias);
}

DeviceMatrix UploadPlain(const WeightView& w) {
  ThreadPool pool(1);
  const WeightView* const one[] = {&w};
  return UploadStacked(
      one, 1, w.format == WeightFormat::kBF16 ? ElementType::kBF16 : ElementType::kF32, pool);
}

DeviceMemory UploadFloats(std::span<const float> values) {
  DeviceMemory memory(values.size_bytes());
  Copy(memory.data(), values.data(), static_cast<int64_t>(values.size_bytes()));
  return memory;
}

DeviceMemory UploadIds(std::span<const int32_t> values) {
  DeviceMemory memory(values.size_bytes());
  Copy(memory.data(), values.data(), static_cast<int64_t>(values.size_bytes()));
  return memory;
}

}  // namespace switchyard::cuda
