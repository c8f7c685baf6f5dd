#include "moe/cuda/expert_runner.h"

#include <algorithm>

#include "kernels/cuda/dense_gemm.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/w4a16_gemm.h"
#include "moe/cuda/plain_gemm.h"
#include "moe/expert_parts.h"

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
  int64_t ld_a_scales;  // rows of the chunk
  const DeviceMatrix* b;
  const float* bias;
  void* d;
};

// A run of experts; all experts if `count` is the number of experts.
struct ExpertRun {
  int first = 0, count = 0;
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

int64_t BytesOf(ElementType type) {
  return type == ElementType::kFp8 ? 1 : type == ElementType::kBF16 ? 2 : 4;
}

// The rows of `experts`, by the GEMM that reads only valid rows.
void MultiplyFewRows(const ExpertArithmetic& arithmetic, const Product& product,
                     const RowChunk& chunk, ExpertRun experts, const PdlStream& chain) {
  const DeviceMatrix& b = *product.b;
  const int64_t scales = CeilDiv(b.n, kFp8BlockSize) * CeilDiv(b.k, kFp8BlockSize);
  const GroupedGemmParams p = {.a = product.a,
                               .a_scales = product.a_scales,
                               .ld_a_scales = product.ld_a_scales,
                               .b = b.data.data() + experts.first * b.n * b.k * BytesOf(b.type),
                               .b_scales = b.type == ElementType::kFp8
                                               ? b.scales.as<float>() + experts.first * scales
                                               : nullptr,
                               .d = product.d,
                               .rows = chunk.rows,
                               .n = b.n,
                               .k = b.k,
                               .groups = experts.count,
                               .group_begins = chunk.order.offsets + experts.first,
                               .group_rows = chunk.order.counts + experts.first,
                               .groups_ready = true,
                               .bias = product.bias ? product.bias + experts.first * b.n : nullptr};
  arithmetic.input == ElementType::kFp8 ? GroupedGemmFp8(p, chain) : GroupedGemmBf16(p, chain);
}

// All rows of the chunk, which may be a part of the chunk that `product` has the strides of.
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
  if (few_rows) return MultiplyFewRows(arithmetic, product, chunk, {0, experts}, chain);
  const GroupedGemmParams p = {
      .a = product.a,
      .a_scales = product.a_scales,
      .ld_a_scales = product.ld_a_scales,
      .b = b.data.data(),
      .b_scales = b.scales.as<float>(),
      .d = product.d,
      .block_groups = chunk.order.block_groups + chunk.first / kGroupBlockRows,
      .rows = chunk.rows,
      .n = b.n,
      .k = b.k,
      .groups = experts,
      .bias = product.bias};
  arithmetic.input == ElementType::kFp8 ? GroupedGemmFp8(p, chain) : GroupedGemmBf16(p, chain);
}

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

// The GEMMs of a batch's expert rows, chunk by chunk.
class ExpertProducts {
 public:
  ExpertProducts(const DeviceExperts& experts, const ExpertActivation& activation,
                 const CudaMoeState& state, const CudaMoeBackend& backend)
      : experts_(experts),
        activation_(activation),
        state_(state),
        backend_(backend),
        few_rows_(state.ordered_rows <= backend.chunk_rows() &&
                  state.arrived.expected_slots < kFewRows * experts.experts) {}

  RowChunk ChunkAt(int64_t first) const {
    return {.order = state_.order,
            .first = first,
            .rows = std::min(backend_.chunk_rows(), state_.ordered_rows - first)};
  }

  // Permute, gate and up GEMM, activation.
  void GateUp(const RowChunk& chunk) const {
    const ProductBuffers& buffers = state_.buffers.products;
    const CudaMoeState::Arrived& arrived = state_.arrived;
    Check(PermuteRows({.in = arrived.in,
                       .rows = arrived.rows,
                       .row_stride = arrived.row_stride,
                       .scale_offset = arrived.scale_offset,
                       .from = arrived.type,
                       .via = arrived.travelled ? ElementType::kF32 : TypeOf(backend_.row_format()),
                       .hidden = experts_.hidden,
                       .k = backend_.shape().top_k,
                       .chunk = chunk,
                       .to = experts_.arithmetic.input,
                       .a = buffers.a.data(),
                       .a_scales = buffers.a_scales.as<float>()},
                      backend_.chain()),
          "permute of rows");
    Multiply(experts_.arithmetic,
             {buffers.a.data(), buffers.a_scales.as<float>(), chunk.rows, &experts_.gate_up,
              experts_.gate_up_bias.as<float>(), buffers.gate_up.data()},
             chunk, experts_.experts, few_rows_, backend_.chain());
    ActivateRows(experts_, activation_, chunk, buffers, backend_.chain());
  }

  void Down(const RowChunk& chunk) const { DownRows(chunk, chunk); }

  // Part `part` of `parts` of the down projection of a chunk; returns its outputs.
  OutputRange DownPart(const RowChunk& chunk, int part, int parts) const {
    if (parts > 1 && UsesFewRowsGemm()) return DownExperts(chunk, part, parts);
    // Rows beyond the expected ones belong to the last part.
    const int64_t rows = CeilDiv(CeilDiv(ExpectedRows(chunk), parts), kGroupBlockRows);
    const int64_t begin = std::min(part * rows * kGroupBlockRows, chunk.rows);
    const int64_t end =
        part == parts - 1 ? chunk.rows : std::min(begin + rows * kGroupBlockRows, chunk.rows);
    const RowChunk own = {.order = chunk.order, .first = chunk.first + begin, .rows = end - begin};
    if (own.rows > 0) DownRows(chunk, own);
    return {.begin = static_cast<int32_t>(own.first),
            .end = static_cast<int32_t>(own.first + own.rows)};
  }

  // Parts for which the down projection of the first chunk still occupies the GPU.
  int Parts(const RowChunk& chunk) const {
    const int64_t units = UsesFewRowsGemm()
                              ? experts_.experts * CeilDiv(experts_.hidden, kColumnsOfFewRows) /
                                    (kMinWaves * MultiprocessorCount())
                              : ExpectedRows(chunk) / kMinPartRows;
    const int64_t most = UsesFewRowsGemm() ? experts_.experts : chunk.rows / kGroupBlockRows;
    const int64_t wanted = backend_.down_parts() > 0 ? backend_.down_parts()
                                                     : std::min<int64_t>(units, kMaxCombineParts);
    return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
  }

 private:
  // Minimum rows of a part: several waves of tiles of the many-rows GEMM.
  static constexpr int64_t kMinPartRows = 4096;
  // Columns per tile of the few-rows GEMM, and minimum waves of its tiles in a part.
  static constexpr int64_t kColumnsOfFewRows = 128, kMinWaves = 2;

  bool UsesFewRowsGemm() const {
    return few_rows_ && experts_.arithmetic.tensor_cores && !experts_.down.packed;
  }
  // With the padding of each expert.
  int64_t ExpectedRows(const RowChunk& chunk) const {
    return std::min(chunk.rows, state_.arrived.expected_slots +
                                    int64_t{experts_.experts} * kGroupBlockRows / 2);
  }

  // Rows `own` of the activated rows of `chunk`.
  void DownRows(const RowChunk& chunk, const RowChunk& own) const {
    const int64_t skipped = own.first - chunk.first;
    Multiply(experts_.arithmetic, DownProduct(chunk, skipped), own, experts_.experts, few_rows_,
             backend_.chain());
  }
  // Experts of a chunk with few rows. Their positions are known to the device.
  OutputRange DownExperts(const RowChunk& chunk, int part, int parts) const {
    const Share own = ExpertParts(experts_.experts, parts).Of(part);
    MultiplyFewRows(experts_.arithmetic, DownProduct(chunk, 0), chunk,
                    {static_cast<int>(own.begin), static_cast<int>(own.size())}, backend_.chain());
    return {.begin_on_device = chunk.order.offsets + own.begin,
            .end_on_device = chunk.order.offsets + own.end};
  }
  // From row `skipped` of the chunk on.
  Product DownProduct(const RowChunk& chunk, int64_t skipped) const {
    const ProductBuffers& buffers = state_.buffers.products;
    const ExpertArithmetic& arithmetic = experts_.arithmetic;
    const float* scales = buffers.middle_scales.as<float>();
    return {
        .a = buffers.middle.data() + skipped * experts_.intermediate * BytesOf(arithmetic.input),
        .a_scales = scales ? scales + skipped : nullptr,
        .ld_a_scales = chunk.rows,
        .b = &experts_.down,
        .bias = experts_.down_bias.as<float>(),
        .d = state_.buffers.outputs.data() +
             (chunk.first + skipped) * experts_.hidden * BytesOf(arithmetic.output)};
  }

  const DeviceExperts& experts_;
  const ExpertActivation& activation_;
  const CudaMoeState& state_;
  const CudaMoeBackend& backend_;
  const bool few_rows_;
};

}  // namespace

void RunDeviceExperts(const DeviceExperts& experts, const ExpertActivation& activation,
                      const CudaMoeState& state, const CudaMoeBackend& backend) {
  const ExpertProducts products(experts, activation, state, backend);
  for (int64_t first = 0; first < state.ordered_rows; first += backend.chunk_rows()) {
    const RowChunk chunk = products.ChunkAt(first);
    products.GateUp(chunk);
    products.Down(chunk);
  }
}

void RunDeviceGateUp(const DeviceExperts& experts, const ExpertActivation& activation,
                     const CudaMoeState& state, const CudaMoeBackend& backend) {
  const ExpertProducts products(experts, activation, state, backend);
  if (state.ordered_rows > 0) products.GateUp(products.ChunkAt(0));
}

void RunDeviceDown(const DeviceExperts& experts, const ExpertActivation& activation,
                   const CudaMoeState& state, const CudaMoeBackend& backend,
                   const std::function<void(const OutputRange&)>& send) {
  if (state.ordered_rows == 0) return send({});
  const ExpertProducts products(experts, activation, state, backend);
  for (int64_t first = 0; first < state.ordered_rows; first += backend.chunk_rows()) {
    const RowChunk chunk = products.ChunkAt(first);
    if (first > 0) products.GateUp(chunk);
    const int parts = first == 0 ? products.Parts(chunk) : 1;
    for (int part = 0; part < parts; ++part) {
      OutputRange outputs = products.DownPart(chunk, part, parts);
      outputs.last = part == parts - 1 && chunk.first + chunk.rows == state.ordered_rows;
      send(outputs);
    }
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
                {buffers.a.data(), buffers.a_scales.as<float>(), all.rows, &shared.gate_up,
                 shared.gate_up_bias.as<float>(), buffers.gate_up.data()},
                all, tokens, shared.arithmetic.output == ElementType::kF32, chain);
  ActivateRows(shared, activation, all, buffers, chain);
  MultiplyDense(shared.arithmetic,
                {buffers.middle.data(), buffers.middle_scales.as<float>(), all.rows, &shared.down,
                 shared.down_bias.as<float>(), y},
                all, tokens, /*float_output=*/true, chain);
}

}  // namespace switchyard::cuda
