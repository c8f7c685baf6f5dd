#include <algorithm>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "moe/cuda/builtin_backends.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "moe/cuda/runners/plain_gemm.h"
#include "moe/runners/expert_parts.h"

namespace switchyard::cuda {
namespace {

// Threshold for the average number of rows per expert. Below it, the GEMM that reads only valid
// rows is faster than the GEMM that computes whole blocks of 128 rows.
constexpr int64_t kFewRows = 128;

constexpr int64_t kScaleRows = 4;  // rows: alignment of each column of scales

struct Product {
  const void* a;
  const float* a_scales;
  int64_t ld_a_scales;  // stride between columns of scales: rows of the chunk
  const DeviceMatrix* b;
  const float* bias;
  void* d;
};

// A range of consecutive experts. If `count` is the number of experts, these are all experts.
struct ExpertRun {
  int first = 0, count = 0;
};

// Each GEMM below follows a kernel that waits for the row-ordering kernel. So the row counts of
// experts are final when the GEMM starts (groups_ready).

// Multiplies with packed weights, for which one kernel supports chunks of any size.
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

// GEMM parameters that are the same whether the GEMM reads valid rows only or whole blocks. FP8
// weights have one scale per block.
GroupedGemmParams ParamsOf(const Product& product, const RowChunk& chunk, ExpertRun experts) {
  const DeviceMatrix& b = *product.b;
  const int64_t scales = CeilDiv(b.n, kFp8BlockSize) * CeilDiv(b.k, kFp8BlockSize);
  return {.a = product.a,
          .a_scales = product.a_scales,
          .ld_a_scales = product.ld_a_scales,
          .b = b.data.data() + experts.first * b.n * b.k * ElementBytes(b.type),
          .b_scales =
              b.type == ElementType::kFp8 ? b.scales.as<float>() + experts.first * scales : nullptr,
          .d = product.d,
          .rows = chunk.rows,
          .n = b.n,
          .k = b.k,
          .groups = experts.count,
          .bias = product.bias ? product.bias + experts.first * b.n : nullptr};
}

void Launch(const ExpertArithmetic& arithmetic, const GroupedGemmParams& p,
            const PdlStream& chain) {
  arithmetic.input == ElementType::kFp8 ? GroupedGemmFp8(p, chain) : GroupedGemmBf16(p, chain);
}

// Multiplies the rows of `experts` with the GEMM that reads only valid rows.
void MultiplyByCounts(const ExpertArithmetic& arithmetic, const Product& product,
                      const RowChunk& chunk, ExpertRun experts, const PdlStream& chain) {
  GroupedGemmParams p = ParamsOf(product, chunk, experts);
  p.group_begins = chunk.order.offsets + experts.first;
  p.group_rows = chunk.order.counts + experts.first;
  p.groups_ready = true;
  Launch(arithmetic, p, chain);
}

// Multiplies all rows of `chunk`. If `chunk` is a part of a larger chunk, `product` has the strides
// of the larger one.
void Multiply(const ExpertArithmetic& arithmetic, const Product& product, const RowChunk& chunk,
              int experts, bool by_counts, const PdlStream& chain) {
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
  if (by_counts) return MultiplyByCounts(arithmetic, product, chunk, {0, experts}, chain);
  GroupedGemmParams p = ParamsOf(product, chunk, {0, experts});
  p.block_groups = chunk.order.block_groups + chunk.first / kGroupBlockRows;
  Launch(arithmetic, p, chain);
}

void ActivateRows(const DeviceExperts& experts, const ExpertActivation& activation,
                  const RowChunk& chunk, const ProductBuffers& buffers, const PdlStream& chain) {
  Check(Activate({.gate_up = buffers.gate_up.data(),
                  .from = experts.arithmetic.output,
                  .intermediate = experts.intermediate,
                  .chunk = chunk,
                  .kind = activation.kind,
                  .alpha = activation.alpha,
                  .limit = activation.limit,
                  .to = experts.arithmetic.input,
                  .middle = buffers.middle.data(),
                  .scales = buffers.middle_scales.as<float>()},
                 chain),
        "activation of experts");
}

// Multiplies all rows with the weights of a single expert. The output is float32 if `float_output`.
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

// The GEMMs of one chunk.
class MlpProducts {
 public:
  MlpProducts(const DeviceExperts& experts, const GpuGroupedRows& rows,
              const ProductBuffers& buffers, RunnerLayout layout, const PdlStream& chain)
      : experts_(experts),
        rows_(rows),
        buffers_(buffers),
        chain_(chain),
        by_counts_(rows.is_whole && (layout == RunnerLayout::kMasked ||
                                     rows.expected_rows < kFewRows * experts.experts)) {}

  // Runs the gate and up GEMM, and the activation.
  void GateUp(const ExpertActivation& activation) const {
    Multiply(experts_.arithmetic,
             {rows_.a, rows_.a_scales, rows_.chunk.rows, &experts_.gate_up,
              experts_.gate_up_bias.as<float>(), buffers_.gate_up.data()},
             rows_.chunk, experts_.experts, by_counts_, chain_);
    ActivateRows(experts_, activation, rows_.chunk, buffers_, chain_);
  }

  // Computes part `part` of `parts` of the down projection, and returns the range of its outputs.
  OutputRange Down(int part, int parts, void* y) const {
    if (parts > 1 && SplitsByExpert()) return DownExperts(part, parts, y);
    // Parts have equal shares of the expected rows. The last part also has all rows beyond the
    // expected ones.
    const RowChunk& all = rows_.chunk;
    const int64_t rows = CeilDiv(CeilDiv(ExpectedRows(), parts), kGroupBlockRows) * kGroupBlockRows;
    const int64_t begin = std::min(part * rows, all.rows);
    const int64_t end = part == parts - 1 ? all.rows : std::min(begin + rows, all.rows);
    const RowChunk own = {.order = all.order, .first = all.first + begin, .rows = end - begin};
    if (own.rows > 0)
      Multiply(experts_.arithmetic, DownProduct(begin, y), own, experts_.experts, by_counts_,
               chain_);
    return {.begin = static_cast<int32_t>(own.first),
            .end = static_cast<int32_t>(own.first + own.rows)};
  }

  // Number of parts in which the down projection can be computed, at most `wanted`.
  int Parts(int wanted) const {
    const int64_t most = SplitsByExpert() ? experts_.experts : rows_.chunk.rows / kGroupBlockRows;
    return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
  }
  // Number of parts for which the overlap saves more time than the additional launches cost. With
  // few rows it is 1: four parts of 940 MB of weights each made a decode step 0.7 % slower
  // (measured on two H200).
  int UsefulParts() const {
    if (by_counts_) return 1;
    const int64_t products = ExpectedRows() * experts_.down.n * experts_.down.k;
    return Parts(
        static_cast<int>(std::min<int64_t>(products / kMinPartProducts, kMaxCombineParts)));
  }

 private:
  // Minimum number of multiply-adds of a part. This number takes about 400 us on a Hopper GPU.
  // Parts of 100 us were slower (measured).
  static constexpr int64_t kMinPartProducts = int64_t{120} << 30;

  bool SplitsByExpert() const {
    return by_counts_ && experts_.arithmetic.tensor_cores && !experts_.down.packed;
  }
  // Expected number of rows of the chunk, including the padding of each expert.
  int64_t ExpectedRows() const {
    return std::min(rows_.chunk.rows,
                    rows_.expected_rows + int64_t{experts_.experts} * kGroupBlockRows / 2);
  }

  // Computes a part that is a range of consecutive experts. Only the device has the positions of
  // their rows.
  OutputRange DownExperts(int part, int parts, void* y) const {
    const RowChunk& chunk = rows_.chunk;
    const Range own = ExpertParts(experts_.experts, parts).Of(part);
    MultiplyByCounts(experts_.arithmetic, DownProduct(0, y), chunk,
                     {static_cast<int>(own.begin), static_cast<int>(own.size())}, chain_);
    return {.begin_on_device = chunk.order.offsets + own.begin,
            .end_on_device = chunk.order.offsets + own.end};
  }
  // The product that computes the down projection of the chunk's rows from `skipped` on.
  Product DownProduct(int64_t skipped, void* y) const {
    const ExpertArithmetic& arithmetic = experts_.arithmetic;
    const float* scales = buffers_.middle_scales.as<float>();
    return {.a = buffers_.middle.data() +
                 skipped * experts_.intermediate * ElementBytes(arithmetic.input),
            .a_scales = scales ? scales + skipped : nullptr,
            .ld_a_scales = rows_.chunk.rows,
            .b = &experts_.down,
            .bias = experts_.down_bias.as<float>(),
            .d = static_cast<std::byte*>(y) +
                 skipped * experts_.hidden * ElementBytes(arithmetic.output)};
  }

  const DeviceExperts& experts_;
  const GpuGroupedRows& rows_;
  const ProductBuffers& buffers_;
  const PdlStream& chain_;
  // Whether GEMMs find the rows of experts by offsets and counts. Offsets and counts refer to the
  // whole order, so this is false if the chunk is only a part of the order.
  const bool by_counts_;
};

class MlpRunner : public GpuRunner {
 public:
  explicit MlpRunner(RunnerLayout layout) : layout_(layout) {}
  RunnerLayout layout() const override { return layout_; }
  int DownParts(const DeviceExperts& experts, const GpuGroupedRows& rows) const override {
    return MlpProducts(experts, rows, ProductBuffers(), layout_, PdlStream(nullptr)).UsefulParts();
  }

  void Run(const DeviceExperts& experts, const ExpertActivation& activation,
           const GpuGroupedRows& rows, const ProductBuffers& buffers, void* y,
           const PdlStream& chain) override {
    const MlpProducts products(experts, rows, buffers, layout_, chain);
    products.GateUp(activation);
    products.Down(0, 1, y);
  }
  void RunGateUp(const DeviceExperts& experts, const ExpertActivation& activation,
                 const GpuGroupedRows& rows, const ProductBuffers& buffers,
                 const PdlStream& chain) override {
    MlpProducts(experts, rows, buffers, layout_, chain).GateUp(activation);
  }
  void RunDown(const DeviceExperts& experts, const ExpertActivation& /*activation*/,
               const GpuGroupedRows& rows, const ProductBuffers& buffers, int parts, void* y,
               const PdlStream& chain, const std::function<void(OutputRange)>& send) override {
    const MlpProducts products(experts, rows, buffers, layout_, chain);
    parts = products.Parts(parts);
    for (int part = 0; part < parts; ++part) {
      OutputRange outputs = products.Down(part, parts, y);
      outputs.last = part == parts - 1;
      send(outputs);
    }
  }

 private:
  const RunnerLayout layout_;
};

}  // namespace

void GpuRunner::RunDown(const DeviceExperts& experts, const ExpertActivation& activation,
                        const GpuGroupedRows& rows, const ProductBuffers& buffers, int /*parts*/,
                        void* y, const PdlStream& chain,
                        const std::function<void(OutputRange)>& send) {
  Run(experts, activation, rows, buffers, y, chain);
  send({.begin = static_cast<int32_t>(rows.chunk.first),
        .end = static_cast<int32_t>(rows.chunk.first + rows.chunk.rows)});
}

ExpertArithmetic GpuRunner::Arithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                       bool packs) const {
  return ChooseArithmetic(experts, dtype, IsHopper(), packs);
}

std::unique_ptr<GpuRunner> MakeGroupedMlp() {
  return std::make_unique<MlpRunner>(RunnerLayout::kContiguous);
}
std::unique_ptr<GpuRunner> MakeMaskedMlp() {
  return std::make_unique<MlpRunner>(RunnerLayout::kMasked);
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
