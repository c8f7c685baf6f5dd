#include "moe/cuda/expert_runner.h"

#include <algorithm>

#include "kernels/cuda/dense_gemm.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/w4a16_gemm.h"
#include "moe/cuda/plain_gemm.h"

namespace switchyard::cuda {
namespace {

// Threshold of average rows per expert. Below it, the GEMM that reads only valid rows is faster
// than the one that computes whole blocks of 128.
constexpr int64_t kFewRows = 128;

ElementType TypeOf(RowFormat format) {
  if (format.fp8) return ElementType::kFp8;
  return format.dtype == DType::kBF16 ? ElementType::kBF16 : ElementType::kF32;
}

constexpr int64_t kScaleRows = 4;  // alignment of a column of scales

struct Product {
  const void* a;
  const float* a_scales;
  const DeviceMatrix* b;
  const float* bias;
  void* d;
};

// Each GEMM follows a kernel that waits for the row-ordering kernel, so group sizes are known.

// Packed weights have one kernel for chunks of any size.
void MultiplyPacked(const Product& product, const RowChunk& chunk, int experts,
                    const PdlStream& chain) {
  const DeviceMatrix& b = *product.b;
  GroupedGemmW4A16({.a = product.a,
                    .format = *b.packed,
                    .records = b.data.data(),
                    .globals = b.scales.as<float>(),
                    .d = product.d,
                    .rows = chunk.rows,
                    .n = b.n,
                    .k = b.k,
                    .groups = experts,
                    .group_begins = chunk.order.offsets,
                    .group_rows = chunk.order.counts,
                    .groups_ready = true,
                    .first_row = chunk.first,
                    .bias = product.bias},
                   chain);
}

void Multiply(const ExpertArithmetic& arithmetic, const Product& product, const RowChunk& chunk,
              int experts, bool few_rows, const PdlStream& chain) {
  const DeviceMatrix& b = *product.b;
  if (!arithmetic.tensor_cores) {
    Check(PlainGroupedGemm({.a = product.a,
                            .b = b.data.data(),
                            .d = product.d,
                            .a_type = arithmetic.input,
                            .b_type = b.type,
                            .d_type = arithmetic.output,
                            .bias = product.bias,
                            .n = b.n,
                            .k = b.k,
                            .chunk = chunk},
                           chain.stream),
          "plain grouped GEMM");
    return;
  }
  if (b.packed) return MultiplyPacked(product, chunk, experts, chain);
  GroupedGemmParams p = {.a = product.a,
                         .a_scales = product.a_scales,
                         .b = b.data.data(),
                         .b_scales = b.scales.as<float>(),
                         .d = product.d,
                         .rows = chunk.rows,
                         .n = b.n,
                         .k = b.k,
                         .groups = experts,
                         .bias = product.bias};
  if (few_rows) {
    p.group_begins = chunk.order.offsets;
    p.group_rows = chunk.order.counts;
    p.groups_ready = true;
  } else {
    p.block_groups = chunk.order.block_groups + chunk.first / kGroupBlockRows;
  }
  arithmetic.input == ElementType::kFp8 ? GroupedGemmFp8(p, chain) : GroupedGemmBf16(p, chain);
}

int64_t BytesOf(ElementType type) { return type == ElementType::kBF16 ? 2 : 4; }

void ActivateRows(const DeviceExperts& experts, const ExpertActivation& activation,
                  const RowChunk& chunk, const ProductBuffers& buffers, const PdlStream& chain) {
  Check(Activate({.gate_up = buffers.gate_up.data(),
                  .from = experts.arithmetic.output,
                  .intermediate = experts.intermediate,
                  .chunk = chunk,
                  .clamped = activation.clamped,
                  .alpha = activation.alpha,
                  .limit = activation.limit,
                  .to = experts.arithmetic.input,
                  .middle = buffers.middle.data(),
                  .scales = buffers.middle_scales.as<float>()},
                 chain),
        "activation of experts");
}

// As Multiply, for one expert that has all rows; float32 output if `float_output`.
void MultiplyDense(const ExpertArithmetic& arithmetic, const Product& product, const RowChunk& rows,
                   int64_t tokens, bool float_output, const PdlStream& chain) {
  const DeviceMatrix& b = *product.b;
  if (!arithmetic.tensor_cores) {
    Check(PlainGroupedGemm({.a = product.a,
                            .b = b.data.data(),
                            .d = product.d,
                            .a_type = arithmetic.input,
                            .b_type = b.type,
                            .d_type = float_output ? ElementType::kF32 : arithmetic.output,
                            .bias = product.bias,
                            .n = b.n,
                            .k = b.k,
                            .chunk = {.rows = tokens}},
                           chain.stream),
          "plain GEMM of the shared expert");
    return;
  }
  const bool fp8 = arithmetic.input == ElementType::kFp8;
  DenseGemm({.x = product.a,
             .x_scales = fp8 ? product.a_scales : nullptr,
             .ld_x_scales = fp8 ? rows.rows : 0,
             .w = b.data.data(),
             .w_scales = b.scales.as<float>(),
             .bias = product.bias,
             .y = product.d,
             .float_output = float_output,
             .m = tokens,
             .n = b.n,
             .k = b.k},
            chain);
}

}  // namespace

void RunDeviceExperts(const DeviceExperts& experts, const ExpertActivation& activation,
                      const CudaMoeState& state, const CudaMoeBackend& backend) {
  const ProductBuffers& buffers = state.buffers.products;
  const PdlStream chain = backend.chain();
  const ExpertArithmetic& arithmetic = experts.arithmetic;
  const CudaMoeState::Arrived& arrived = state.arrived;
  const ElementType row_type = TypeOf(backend.row_format());
  const bool one_chunk = state.ordered_rows <= backend.chunk_rows();
  const bool few_rows = one_chunk && arrived.expected_slots < kFewRows * experts.experts;
  for (int64_t first = 0; first < state.ordered_rows; first += backend.chunk_rows()) {
    const RowChunk chunk = {.order = state.order,
                            .first = first,
                            .rows = std::min(backend.chunk_rows(), state.ordered_rows - first)};
    std::byte* outputs =
        state.buffers.outputs.data() + first * experts.hidden * BytesOf(arithmetic.output);
    Check(PermuteRows({.in = arrived.in,
                       .rows = arrived.rows,
                       .row_stride = arrived.row_stride,
                       .scale_offset = arrived.scale_offset,
                       .from = arrived.type,
                       .via = arrived.travelled ? ElementType::kF32 : row_type,
                       .hidden = experts.hidden,
                       .k = backend.shape().top_k,
                       .chunk = chunk,
                       .to = arithmetic.input,
                       .a = buffers.a.data(),
                       .a_scales = buffers.a_scales.as<float>()},
                      chain),
          "permute of rows");
    Multiply(arithmetic,
             {buffers.a.data(), buffers.a_scales.as<float>(), &experts.gate_up,
              experts.gate_up_bias.as<float>(), buffers.gate_up.data()},
             chunk, experts.experts, few_rows, chain);
    ActivateRows(experts, activation, chunk, buffers, chain);
    Multiply(arithmetic,
             {buffers.middle.data(), buffers.middle_scales.as<float>(), &experts.down,
              experts.down_bias.as<float>(), outputs},
             chunk, experts.experts, few_rows, chain);
  }
}

void RunSharedExpert(const DeviceExperts& shared, const ExpertActivation& activation,
                     const float* x, int64_t tokens, float* y, ProductBuffers& buffers,
                     const PdlStream& chain) {
  if (tokens == 0) return;
  const RowChunk all = {.rows = CeilDiv(tokens, kScaleRows) * kScaleRows};
  Check(PermuteRows({.in = {.segments = 1, .capacity = tokens, .tokens = tokens},
                     .rows = reinterpret_cast<const std::byte*>(x),
                     .row_stride = shared.hidden * static_cast<int64_t>(sizeof(float)),
                     .hidden = shared.hidden,
                     .k = 1,
                     .chunk = all,
                     .to = shared.arithmetic.input,
                     .a = buffers.a.data(),
                     .a_scales = buffers.a_scales.as<float>()},
                    chain),
        "rows of the shared expert");
  MultiplyDense(shared.arithmetic,
                {buffers.a.data(), buffers.a_scales.as<float>(), &shared.gate_up,
                 shared.gate_up_bias.as<float>(), buffers.gate_up.data()},
                all, tokens, shared.arithmetic.output == ElementType::kF32, chain);
  ActivateRows(shared, activation, all, buffers, chain);
  MultiplyDense(shared.arithmetic,
                {buffers.middle.data(), buffers.middle_scales.as<float>(), &shared.down,
                 shared.down_bias.as<float>(), y},
                all, tokens, /*float_output=*/true, chain);
}

}  // namespace switchyard::cuda
