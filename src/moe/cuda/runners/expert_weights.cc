#include "moe/cuda/runners/expert_weights.h"

#include <algorithm>
#include <span>

#include "core/check.h"
#include "core/cpus.h"
#include "core/device_store.h"
#include "core/error.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "moe/cuda/runners/expert_upload.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kGemmStep = 64;  // sizes must be multiples of this for GroupedGemmBf16

void Copy(std::byte* to, const void* from, int64_t bytes) {
  CopyToDevice(to, from, static_cast<size_t>(bytes), "copy of weights to the GPU");
}

DeviceMemory Memory(int64_t bytes, DeviceStore* store) {
  return bytes > 0 ? DeviceMemory(static_cast<size_t>(bytes), store) : DeviceMemory();
}

// Whether memory of the store holds its weights already.
bool IsFilled(const DeviceStore* store) { return store && store->filled(); }

template <typename T>
DeviceMemory UploadVector(std::span<const T> values, DeviceStore* store) {
  DeviceMemory memory(values.size_bytes(), store);
  if (!IsFilled(store))
    Copy(memory.data(), values.data(), static_cast<int64_t>(values.size_bytes()));
  return memory;
}

// Allocates `matrices` matrices. Each has `parts` parts [n, k], stacked along n.
DeviceMatrix Allocate(int64_t matrices, int64_t parts, int64_t n, int64_t k, ElementType type,
                      std::optional<W4A16Format> packed, DeviceStore* store) {
  DeviceMatrix stacked{
      .type = packed ? ElementType::kBF16 : type, .n = parts * n, .k = k, .packed = packed};
  const MatrixBytes bytes = BytesOfMatrix(parts, n, k, type, packed);
  stacked.data = Memory(matrices * bytes.data, store);
  stacked.scales = Memory(matrices * bytes.scales, store);
  return stacked;
}

// The weight views of all experts; an expert's gate view precedes its up view.
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

bool IsStored(const kernels::ExpertWeights& e, WeightFormat format) {
  return e.gate.format == format && e.up.format == format && e.down.format == format;
}

bool HasUpperBias(const kernels::ExpertWeights& e) { return e.gate_bias || e.up_bias; }
bool HasLowerBias(const kernels::ExpertWeights& e) { return e.down_bias != nullptr; }

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
    return std::ranges::all_of(
        experts, [&](const kernels::ExpertWeights& e) { return IsStored(e, format); });
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
                             ExpertArithmetic arithmetic_in, DeviceStore* store)
    : arithmetic(arithmetic_in),
      experts(static_cast<int>(from.size())),
      hidden(from[0].gate.k),
      intermediate(from[0].gate.n) {
  if (hidden % 4 != 0 || intermediate % 4 != 0)
    throw Invalid(
        "experts with {} hidden and {} intermediate elements on this rank: GPUs require multiples "
        "of 4",
        hidden, intermediate);
  const auto& packed = arithmetic.packed;
  using Format = std::optional<W4A16Format>;
  const int64_t parts = arithmetic.upper_parts();
  gate_up = Allocate(experts, parts, intermediate, hidden, arithmetic.weights,
                     packed ? Format(packed->gate_up) : Format(), store);
  down = Allocate(experts, 1, hidden, intermediate, arithmetic.weights,
                  packed ? Format(packed->down) : Format(), store);
  const auto float_bytes = static_cast<int64_t>(experts * sizeof(float));
  if (std::ranges::any_of(from, HasUpperBias))
    gate_up_bias = Memory(float_bytes * parts * intermediate, store);
  if (std::ranges::any_of(from, HasLowerBias)) down_bias = Memory(float_bytes * hidden, store);
  if (IsFilled(store)) return;
  ExpertUploader uploader(Copy, std::clamp(AllowedCpuCount(), 1, 8));
  for (int i = 0; i < experts; ++i) uploader.Upload(from[i], arithmetic, Slot(i));
}

ExpertSlotBytes DeviceExperts::slot_bytes() const {
  ExpertSlotBytes bytes{};
  const std::array arrays = {&gate_up.data, &gate_up.scales, &down.data,
                             &down.scales,  &gate_up_bias,   &down_bias};
  for (size_t i = 0; i < arrays.size(); ++i)
    bytes[i] = static_cast<int64_t>(arrays[i]->bytes()) / experts;
  return bytes;
}

ExpertSlot DeviceExperts::Slot(int expert) const {
  const ExpertSlotBytes bytes = slot_bytes();
  const std::array arrays = {&gate_up.data, &gate_up.scales, &down.data,
                             &down.scales,  &gate_up_bias,   &down_bias};
  ExpertSlot slot{};
  for (size_t i = 0; i < arrays.size(); ++i)
    if (bytes[i] > 0) slot[i] = arrays[i]->data() + expert * bytes[i];
  return slot;
}

void DeviceExperts::CheckFits(const kernels::ExpertWeights& expert, const char* want) const {
  const auto refuse = [want](const char* why) {
    throw Invalid("an expert that comes to this GPU {}: {}", why, want);
  };
  if (expert.gate.n != intermediate || expert.gate.k != hidden)
    refuse("has another size than this layer's experts");
  if ((HasUpperBias(expert) && gate_up_bias.bytes() == 0) ||
      (HasLowerBias(expert) && down_bias.bytes() == 0))
    refuse("has a bias, and this layer's experts have none");
  const std::span one(&expert, 1);
  const bool fp8 = arithmetic.input == ElementType::kFp8;
  const bool keeps_bf16 =
      arithmetic.input == ElementType::kF32 && arithmetic.weights == ElementType::kBF16;
  if ((fp8 && !HasFp8Blocks(expert)) || (keeps_bf16 && !IsStored(expert, WeightFormat::kBF16)) ||
      (arithmetic.packed && FindPacked(one) != arithmetic.packed))
    refuse("cannot be stored in the format of this layer's experts");
}

DeviceMatrix UploadPlain(const WeightView& w, DeviceStore* store) {
  const ElementType type = w.format == WeightFormat::kBF16 ? ElementType::kBF16 : ElementType::kF32;
  DeviceMatrix matrix = Allocate(1, 1, w.n, w.k, type, {}, store);
  if (!IsFilled(store)) ExpertUploader(Copy, 1).UploadRows(w, type, matrix.data.data());
  return matrix;
}

DeviceMemory UploadFloats(std::span<const float> values, DeviceStore* store) {
  return UploadVector(values, store);
}

DeviceMemory UploadIds(std::span<const int32_t> values, DeviceStore* store) {
  return UploadVector(values, store);
}

}  // namespace switchyard::cuda
