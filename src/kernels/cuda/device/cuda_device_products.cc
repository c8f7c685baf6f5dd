#include "kernels/cuda/device/cuda_device_products.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/elementwise/ops_rows.h"
#include "kernels/cuda/gemm/gemm.h"

namespace switchyard::cuda {

void* Scratch::Get(size_t bytes) {
  if (bytes > memory_.bytes()) {
    synchronize_();
    // Doubling keeps the total size of outgrown buffers below that of the current one.
    const size_t grown = std::max(bytes, 2 * memory_.bytes());
    if (memory_.bytes() > 0) outgrown_.push_back(std::move(memory_));
    memory_ = DeviceMemory(grown);
  }
  return memory_.data();
}

LinearOps::LinearOps(DType dtype, int64_t max_tokens, const std::function<void()>& synchronize)
    : dtype_(dtype),
      hopper_(IsHopper()),
      max_tokens_(max_tokens),
      data_(synchronize),
      scales_(synchronize),
      up_(synchronize) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
}

int64_t LinearOps::Capacity(int64_t rows) const { return std::max(rows, max_tokens_); }

LinearOps::Kernel LinearOps::KernelOf(const kernels::LinearParams& p) const {
  const WeightView& w = p.w;
  if (dtype_ == DType::kF32 || w.format == WeightFormat::kF32 || w.format == WeightFormat::kF16)
    return Kernel::kExact;
  const bool fp8 = w.format == WeightFormat::kFp8Block;
  const Kernel other = fp8 ? Kernel::kExact : Kernel::kMma;
  // DenseGemm needs Hopper and a contiguous matrix. A view of some columns, or of rows that are not
  // adjacent, is not contiguous.
  if (!hopper_ || w.row_step != 1 || w.col0 != 0 || w.k != w.stored_k) return other;
  if (fp8 && w.row0 % kFp8BlockSize != 0) return other;
  if (p.ldy % 2 != 0) return other;  // else alignment, and so the kernel, would differ between rows
  const WeightArg arg = WeightArgOf(w);
  // Input rows are in the scratch buffer, which is aligned; m = 1 stands for any m.
  const DenseGemmParams gemm = {.ld_x_scales = 4,
                                .w = arg.base,
                                .bias = p.bias,
                                .y = p.y,
                                .ldy = p.ldy,
                                .accumulate = p.accumulate,
                                .m = 1,
                                .n = w.n,
                                .k = w.k};
  DenseGemmParams with_scales = gemm;
  if (fp8) with_scales.x_scales = with_scales.w_scales = arg.scales;
  return DenseGemmTakes(with_scales) ? Kernel::kDense : other;
}

LinearOps::RowForm LinearOps::FormOf(const WeightView& w, Kernel kernel) const {
  RowForm form = {.rounding = {.format = w.activation, .input_scale = w.input_scale}};
  const bool fp8 = dtype_ == DType::kBF16 && w.format == WeightFormat::kFp8Block;
  if (fp8) form.rounding.format = ActivationFormat::kFp8Group;
  if (kernel == Kernel::kDense) form.kind = fp8 ? RowForm::kFp8 : RowForm::kBf16;
  return form;
}

bool LinearOps::Rows::Serve(const ops::RowSource& wanted, const RowForm& as) const {
  const ops::Rounding &a = form.rounding, &b = as.rounding;
  return source.x == wanted.x && source.up == wanted.up && source.ldx == wanted.ldx &&
         source.m == wanted.m && source.k == wanted.k && form.kind == as.kind &&
         a.format == b.format &&
         (a.format != ActivationFormat::kFp8Tensor || a.input_scale == b.input_scale);
}

LinearOps::Rows LinearOps::PrepareRows(const ops::RowSource& source, const RowForm& form,
                                       const PdlStream& chain) {
  const cudaStream_t stream = chain.stream;
  const int64_t k = source.k, capacity = Capacity(source.m);
  Rows rows = {.source = source, .form = form, .ld = k};
  if (form.kind == RowForm::kFp8) {
    rows.scale_ld = RoundUp(capacity, 4);
    auto* codes = static_cast<uint8_t*>(data_.Get(capacity * k));
    auto* scales = static_cast<float*>(
        scales_.Get(k / kFp8BlockSize * rows.scale_ld * static_cast<int64_t>(sizeof(float))));
    Check(ops::QuantizeRows(source, codes, scales, rows.scale_ld, chain),
          "Linear: quantization of rows to FP8");
    rows.data = codes;
    rows.scales = scales;
  } else if (form.kind == RowForm::kBf16) {
    void* bf16_rows = data_.Get(capacity * k * 2);
    Check(ops::RoundRowsToBf16(source, form.rounding, bf16_rows, chain),
          "Linear: rounding of rows to bfloat16");
    rows.data = bf16_rows;
  } else if (form.rounding.format != ActivationFormat::kNone || source.up != nullptr) {
    auto* floats = static_cast<float*>(data_.Get(capacity * k * 4));
    Check(ops::RoundRows(source, form.rounding, floats, stream), "Linear: rounding of rows");
    rows.data = floats;
  } else {
    rows.data = source.x;
    rows.ld = source.ldx;
  }
  return rows;
}

void LinearOps::Multiply(const kernels::LinearParams& p, Kernel kernel, const Rows& rows,
                         const PdlStream& chain) {
  const cudaStream_t stream = chain.stream;
  if (p.m == 0 || p.w.n == 0) return;
  if (kernel == Kernel::kDense) {
    const WeightArg w = WeightArgOf(p.w);
    const bool fp8 = rows.form.kind == RowForm::kFp8;
    const int64_t scale_rows = p.w.row0 / kFp8BlockSize * CeilDiv(p.w.stored_k, kFp8BlockSize);
    DenseGemm({.x = rows.data,
               .x_scales = fp8 ? rows.scales : nullptr,
               .ld_x_scales = fp8 ? rows.scale_ld : 0,
               .w = w.base,
               .w_scales = fp8 ? w.scales + scale_rows : nullptr,
               .bias = p.bias,
               .y = p.y,
               .ldy = p.ldy,
               .accumulate = p.accumulate,
               .m = p.m,
               .n = p.w.n,
               .k = p.w.k},
              chain);
    return;
  }
  ops::LinearLaunch launch = {.x = static_cast<const float*>(rows.data),
                              .ldx = rows.ld,
                              .y = p.y,
                              .ldy = p.ldy,
                              .bias = p.bias,
                              .m = p.m,
                              .accumulate = p.accumulate,
                              .shape = ShapeOf(p.w)};
  launch.weights[0] = WeightArgOf(p.w);
  Check(
      kernel == Kernel::kExact ? ops::LinearExact(launch, stream) : ops::LinearBf16(launch, stream),
      "Linear");
}

// Like LinearGroup with one part, but launches on the chain.
void LinearOps::Linear(const kernels::LinearParams& p, const PdlStream& chain) {
  CHECK_GT(p.w.k, 0);
  const Kernel kernel = KernelOf(p);
  const ops::RowSource source = {.x = p.x, .ldx = p.ldx, .m = p.m, .k = p.w.k};
  Multiply(p, kernel, PrepareRows(source, FormOf(p.w, kernel), chain), chain);
}

kernels::RoundedForm LinearOps::InputFormOf(const kernels::LinearParams& p) const {
  using Form = kernels::RoundedForm;
  const Kernel kernel = KernelOf(p);
  const RowForm form = FormOf(p.w, kernel);
  if (kernel != Kernel::kDense) return Form::kNone;
  // With many rows, quantization in a separate kernel is faster.
  if (form.kind == RowForm::kFp8) return p.m <= ops::kFewNormRows ? Form::kFp8Groups : Form::kNone;
  return form.rounding.format == ActivationFormat::kNone ? Form::kBFloat16 : Form::kNone;
}

void LinearOps::LinearOfRoundedRows(const kernels::LinearParams& p,
                                    const kernels::RoundedRows& rows, const PdlStream& chain) {
  CHECK(rows.form != kernels::RoundedForm::kNone && rows.form == InputFormOf(p));
  const bool fp8 = rows.form == kernels::RoundedForm::kFp8Groups;
  const Rows input = {.form = {.kind = fp8 ? RowForm::kFp8 : RowForm::kBf16},
                      .data = rows.data,
                      .ld = p.w.k,
                      .scales = rows.scales,
                      .scale_ld = rows.scale_stride};
  Multiply(p, Kernel::kDense, input, chain);
}

void LinearOps::LinearGroup(std::span<const kernels::LinearParams> parts, cudaStream_t stream) {
  // Maximum number of rows for concurrent GEMMs. With more rows a single GEMM fills the GPU.
  constexpr int64_t kSmall = 128;
  Rows rows;
  size_t first = 0;  // parts [first, i) are pending with `rows`
  for (size_t i = 0; i < parts.size(); ++i) {
    const kernels::LinearParams& p = parts[i];
    CHECK_GT(p.w.k, 0);
    const ops::RowSource source = {.x = p.x, .ldx = p.ldx, .m = p.m, .k = p.w.k};
    const RowForm form = FormOf(p.w, KernelOf(p));
    const bool served = rows.Serve(source, form);
    if (!served || p.m > kSmall || i - first > kSides) {
      MultiplyConcurrently(parts.subspan(first, i - first), rows, stream);
      first = i;
    }
    if (!served) rows = PrepareRows(source, form, stream);
  }
  MultiplyConcurrently(parts.subspan(first), rows, stream);
}

void LinearOps::MultiplyConcurrently(std::span<const kernels::LinearParams> parts, const Rows& rows,
                                     cudaStream_t stream) {
  if (parts.size() > 1) fork_.Record(stream);
  for (size_t i = 1; i < parts.size(); ++i) {
    const cudaStream_t side = sides_[i - 1].get();
    Check(cudaStreamWaitEvent(side, fork_.get()), "LinearGroup");
    Multiply(parts[i], KernelOf(parts[i]), rows, side);
    joined_[i - 1].Record(side);
  }
  if (!parts.empty()) Multiply(parts[0], KernelOf(parts[0]), rows, stream);
  for (size_t i = 1; i < parts.size(); ++i) {
    Check(cudaStreamWaitEvent(stream, joined_[i - 1].get()), "LinearGroup");
  }
}

void LinearOps::HeadLinear(const kernels::HeadLinearParams& p, cudaStream_t stream) {
  const auto heads = static_cast<int64_t>(p.w.size());
  if (p.m == 0 || heads == 0) return;
  const bool exact = dtype_ == DType::kF32 || p.w[0].format == WeightFormat::kF32 ||
                     p.w[0].format == WeightFormat::kF16;
  for (int64_t first = 0; first < heads; first += ops::kMaxHeads) {
    const int64_t count = std::min<int64_t>(ops::kMaxHeads, heads - first);
    ops::LinearLaunch launch = {.x = p.x + first * p.head_stride_x,
                                .ldx = p.ldx,
                                .head_stride_x = p.head_stride_x,
                                .y = p.y + first * p.head_stride_y,
                                .ldy = p.ldy,
                                .head_stride_y = p.head_stride_y,
                                .m = p.m,
                                .transposed = p.transposed,
                                .shape = ShapeOf(p.w[0]),
                                .heads = static_cast<int>(count)};
    for (int64_t h = 0; h < count; ++h) {
      const WeightView& w = p.w[first + h];
      CHECK(w.format == p.w[0].format && w.n == p.w[0].n && w.k == p.w[0].k);
      CHECK(w.stored_k == p.w[0].stored_k && w.row_step == p.w[0].row_step);
      launch.weights[h] = WeightArgOf(w);
    }
    Check(exact ? ops::LinearExact(launch, stream) : ops::LinearBf16(launch, stream), "HeadLinear");
  }
}

void LinearOps::Mlp(const kernels::GroupedMlpParams& p, cudaStream_t stream) {
  CHECK_EQ(p.experts.size(), 1u);
  CHECK_EQ(p.offsets.size(), 2u);
  CHECK(p.row_ids == nullptr && p.scratch != nullptr);
  const kernels::ExpertWeights& w = p.experts[0];
  const int64_t m = p.offsets[1] - p.offsets[0], middle = w.gate.n;
  if (m == 0) return;
  const bool gated = p.activation != kernels::Activation::kRelu2;
  float* const up = gated ? static_cast<float*>(up_.Get(Capacity(m) * middle * 4)) : p.scratch;
  const auto product = [&](const WeightView& weight, const float* bias, float* y) {
    return kernels::LinearParams{
        .x = p.x, .ldx = p.ldx, .w = weight, .bias = bias, .y = y, .ldy = middle, .m = m};
  };
  const kernels::LinearParams first[] = {product(w.gate, w.gate_bias, p.scratch),
                                         product(w.up, w.up_bias, up)};
  LinearGroup(std::span(first).first(gated ? 2 : 1), stream);
  // The activation writes directly in the input form of `down`, without a round trip through
  // p.scratch.
  const kernels::LinearParams down = {.x = p.scratch,
                                      .ldx = middle,
                                      .w = w.down,
                                      .bias = w.down_bias,
                                      .y = p.out,
                                      .ldy = p.ldo,
                                      .m = m};
  const Kernel kernel = KernelOf(down);
  const ops::RowSource activated = {
      .x = p.scratch,
      .up = up,
      .ldx = middle,
      .m = m,
      .k = middle,
      .act = {.kind = p.activation, .alpha = p.alpha, .limit = p.limit}};
  Multiply(down, kernel, PrepareRows(activated, FormOf(w.down, kernel), stream), stream);
}

}  // namespace switchyard::cuda
