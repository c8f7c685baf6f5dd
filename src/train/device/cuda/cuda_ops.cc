#include "train/device/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "moe/cuda/router/select_experts.h"
#include "train/cuda/adamw.h"
#include "train/cuda/attention.h"
#include "train/cuda/fp8.h"
#include "train/cuda/head_loss.h"
#include "train/cuda/products.h"
#include "train/cuda/router_products.h"
#include "train/cuda/routing.h"
#include "train/cuda/rows.h"
#include "train/device/cuda/given_experts.h"
#include "train/device/cuda/rank_experts.h"
#include "train/device/memory.h"
#include "train/parameter.h"

namespace switchyard::train {
namespace {

static_assert(kFp8Block == gpu::kScaleBlock);

gpu::ProductShape ProductOf(const LinearShape& s) {
  return {.rows = s.rows,
          .n = s.n,
          .k = s.k,
          .groups = static_cast<int>(s.groups),
          .begins = s.offsets};
}

gpu::RouterShape RouterOf(const RouterConfig& config, int64_t m) {
  using Scoring = RouterConfig::Scoring;
  CHECK(config.scoring == Scoring::kSoftmax || config.scoring == Scoring::kSigmoid ||
        config.scoring == Scoring::kTopKSoftmax);
  const gpu::Scoring scoring = config.scoring == Scoring::kSoftmax   ? gpu::Scoring::kSoftmax
                               : config.scoring == Scoring::kSigmoid ? gpu::Scoring::kSigmoid
                                                                     : gpu::Scoring::kTopKSoftmax;
  return {.m = m,
          .experts = config.num_experts,
          .top_k = config.top_k,
          .scoring = scoring,
          .renormalize = config.renormalize,
          .scaling = config.routed_scaling_factor};
}

gpu::AttentionShape AttentionOf(const AttentionShape<float>& s, const DeviceRows& rows) {
  return {.heads = s.heads,
          .kv_heads = s.kv_heads,
          .qk_dim = s.qk_dim,
          .v_dim = s.v_dim,
          .scale = s.scale,
          .window = s.window,
          .rows = rows.m,
          .sequences = static_cast<int>(rows.sequences),
          .begins = rows.begins,
          .longest = rows.longest};
}

gpu::HeadArray Read(const HeadRows<const BF16>& h) { return {h.data, h.row, h.head}; }
gpu::MutableHeadArray Write(const HeadRows<BF16>& h) { return {h.data, h.row, h.head}; }

gpu::BalanceParams BalanceOf(const DeviceBalance& balance, const DeviceRows& rows) {
  const BalanceLosses& weights = balance.weights;
  return {.batch = weights.batch != 0.0 ? balance.batch : nullptr,
          .sequence = weights.sequence != 0.0 ? balance.sequence : nullptr,
          .begins = rows.begins,
          .sequences = static_cast<int>(rows.sequences),
          .z = static_cast<float>(weights.z / balance.step_tokens)};
}

gpu::ExpertRowsShape ExpertRowsOf(const DeviceSlots& s, int64_t width) {
  return {.m = s.m, .hidden = width, .k = static_cast<int>(s.k), .position = s.place};
}

gpu::LatentKeysParams KeysOf(const LatentKeyShape& s) {
  return {
      .m = s.m, .heads = s.heads, .nope = s.nope, .rope = s.rope, .value = s.value, .lora = s.lora};
}

class CudaOps final : public TrainOps<BF16> {
 public:
  explicit CudaOps(int index)
      : device_(kernels::MakeCudaDevice({.index = index, .graphs = false})),
        stream_(cuda::CudaDevice::From(*device_).stream()),
        scratch_(*device_) {}

  kernels::Device& device() override { return *device_; }

  void Zero(void* to, int64_t bytes) override {
    if (bytes == 0) return;
    cuda::Check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_), "clearing memory");
  }
  void Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    cuda::Check(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
        "copying on the GPU");
  }
  void Add(const float* x, float* y, int64_t count) override { gpu::Add(y, x, count, stream_); }
  void Round(const float* x, BF16* y, int64_t count) override {
    gpu::Convert(x, y, count, stream_);
  }
  void StoreColumns(int64_t m, int64_t n, const BF16* from, BF16* columns, int64_t row) override {
    gpu::CopyRows(from, n, columns, row, m, n, false, stream_);
  }
  void LoadColumns(int64_t m, int64_t n, const BF16* columns, int64_t row, float* to) override {
    gpu::CopyRows(columns, row, to, n, m, n, false, stream_);
  }

  void Project(const LinearShape& s, const BF16* x, const BF16* w, BF16* y) override {
    Forward(s, x, w, y, false);
  }
  void ProjectSum(const LinearShape& s, const BF16* x, const BF16* w, float* y,
                  bool accumulate) override {
    Forward(s, x, w, y, accumulate);
  }
  void InputGradient(const LinearShape& s, const BF16* dy, const BF16* w, BF16* dx) override {
    Backward(s, dy, w, dx, false);
  }
  void InputGradientSum(const LinearShape& s, const BF16* dy, const BF16* w, float* dx,
                        bool accumulate) override {
    Backward(s, dy, w, dx, accumulate);
  }
  void WeightGradient(const LinearShape& s, const BF16* dy, const BF16* x, float* dw) override {
    if (s.fp8 == nullptr) return gpu::LinearWeightGradient(ProductOf(s), dy, x, dw, true, stream_);
    if (s.rows == 0) return;
    const int64_t padded = gpu::Fp8PaddedRows(s.rows, s.groups);
    const Fp8Scratch columns_dy(scratch_, padded * s.n, padded * s.n / kFp8Block),
        columns_x(scratch_, padded * s.k, padded * s.k / kFp8Block);
    gpu::QuantizeColumns(ProductOf(s), dy, s.n, columns_dy.view, stream_);
    gpu::QuantizeColumns(ProductOf(s), x, s.k, columns_x.view, stream_);
    gpu::Fp8WeightGradient(ProductOf(s), columns_dy.view, columns_x.view, dw, stream_);
  }
  void QuantizeWeight(const LinearShape& s, const BF16* w) override {
    gpu::QuantizeBlocks(ProductOf(s), w, {s.fp8->codes, s.fp8->scales},
                        {s.fp8->transposed, s.fp8->transposed_scales}, stream_);
  }
  void QuantizeRows(const BF16* x, int64_t m, int64_t width, uint8_t* codes,
                    float* scales) override {
    gpu::QuantizeTransitRows({.rows = m, .width = width}, x, {codes, scales}, stream_);
  }
  void DecodeRows(const uint8_t* codes, const float* scales, int64_t m, int64_t width,
                  BF16* x) override {
    gpu::DecodeTransitRows({.rows = m, .width = width}, {codes, scales}, x, stream_);
  }

  void RouterProject(int64_t m, int64_t n, int64_t k, const BF16* x, const float* w,
                     float* logits) override {
    DeviceArray<std::byte> scratch(scratch_, gpu::RouterProductScratch(m, n, k));
    gpu::RouterLogits({.m = m, .n = n, .k = k, .x = x, .w = w, .scratch = scratch.data()}, logits,
                      stream_);
  }
  void RouterProductGradients(int64_t m, int64_t n, int64_t k, const float* dlogits, const BF16* x,
                              const float* w, float* dx, float* dw) override {
    DeviceArray<std::byte> scratch(scratch_, gpu::RouterProductScratch(m, n, k));
    gpu::RouterProductGradients({.m = m, .n = n, .k = k, .x = x, .w = w, .scratch = scratch.data()},
                                dlogits, dx, dw, stream_);
  }

  void Embed(const int32_t* ids, int64_t m, const float* table, int64_t width,
             float* out) override {
    gpu::Embed(ids, m, table, width, out, stream_);
  }
  void EmbedGradient(std::span<const int32_t> host_ids, const float* dout, int64_t width,
                     float* dtable) override {
    const gpu::TokenOrder order = gpu::OrderByToken(host_ids);
    const auto upload = [&](const std::vector<int32_t>& values) {
      return DeviceArray<int32_t>(scratch_, std::span<const int32_t>(values));
    };
    const DeviceArray<int32_t> rows = upload(order.rows), begins = upload(order.begins),
                               tokens = upload(order.tokens);
    gpu::EmbedGradient({.rows = rows.data(),
                        .begins = begins.data(),
                        .tokens = tokens.data(),
                        .distinct = tokens.size(),
                        .width = width,
                        .dout = dout,
                        .dtable = dtable},
                       stream_);
  }
  void SelectRows(const BF16* x, const int32_t* ids, int64_t count, int64_t width,
                  BF16* out) override {
    gpu::Embed(ids, count, x, width, out, stream_);
  }

  void RmsNorm(const NormShape<float>& s, const float* x, const float* gain, BF16* y) override {
    Norm(s, x, gain, y);
  }
  void RmsNormGradient(const NormShape<float>& s, const float* x, const float* gain,
                       const float* dy, float* dx, bool accumulate, float* dgain) override {
    NormGradient(s, x, gain, dy, dx, accumulate, dgain);
  }
  void HeadNorm(const NormShape<float>& s, const BF16* x, const float* gain, BF16* y) override {
    Norm(s, x, gain, y);
  }
  void HeadNormGradient(const NormShape<float>& s, const BF16* x, const float* gain, const BF16* dy,
                        BF16* dx, float* dgain) override {
    NormGradient(s, x, gain, dy, dx, false, dgain);
  }
  void Rope(const RopeShape<float>& s, BF16* x, bool backward) override {
    gpu::Rope({.m = s.m,
               .heads = s.heads,
               .row = s.row,
               .head = s.head,
               .rotary_dim = s.rotary_dim,
               .offset = s.offset,
               .interleaved = s.interleaved,
               .positions = s.positions,
               .cos_sin = s.cos_sin,
               .x = x},
              backward, stream_);
  }

  void Attention(const AttentionShape<float>& s, const DeviceRows& rows, HeadRows<const BF16> q,
                 HeadRows<const BF16> k, HeadRows<const BF16> v, HeadRows<BF16> out,
                 float* log_sums) override {
    gpu::Attention(AttentionOf(s, rows), Read(q), Read(k), Read(v), Write(out), log_sums, stream_);
  }
  void AttentionGradient(const AttentionShape<float>& s, const DeviceRows& rows,
                         HeadRows<const BF16> q, HeadRows<const BF16> k, HeadRows<const BF16> v,
                         HeadRows<const BF16> out, const float* log_sums, HeadRows<const BF16> dout,
                         HeadRows<BF16> dq, HeadRows<BF16> dk, HeadRows<BF16> dv) override {
    DeviceArray<float> along(scratch_, s.heads * rows.m);
    gpu::AttentionGradient({.shape = AttentionOf(s, rows),
                            .q = Read(q),
                            .k = Read(k),
                            .v = Read(v),
                            .out = Read(out),
                            .dout = Read(dout),
                            .log_sums = log_sums,
                            .along = along.data(),
                            .dq = Write(dq),
                            .dk = Write(dk),
                            .dv = Write(dv)},
                           stream_);
  }

  void SwiGlu(const GateUpShape& s, const BF16* gate_up, BF16* out) override {
    gpu::SwiGlu(GateUp(s, gate_up), out, stream_);
  }
  void SwiGluGradient(const GateUpShape& s, const BF16* dout, BF16* gate_up) override {
    gpu::SwiGluGradient(GateUp(s, gate_up), dout, gate_up, gate_up + s.n, {}, stream_);
  }

  void SelectExperts(const RouterConfig& config, const DeviceRouting& r) override {
    const cuda::SelectExpertsParams params = {
        .logits = r.logits,
        .correction_bias = r.bias,
        .tokens = r.m,
        .num_experts = config.num_experts,
        .top_k = config.top_k,
        .scoring = static_cast<int>(config.scoring),
        .renormalize = config.renormalize,
        .num_groups = config.num_groups,
        .topk_groups = config.topk_groups,
        .top2_sum = config.group_score == RouterConfig::GroupScore::kTop2Sum,
        .scaling = config.routed_scaling_factor,
        .ids = r.ids,
        .weights = r.weights};
    if (!cuda::SelectsExperts(params))
      throw Invalid("a router of {} experts with top-{} cannot be trained on GPUs",
                    config.num_experts, config.top_k);
    cuda::Check(cuda::SelectExpertsOnDevice(params, stream_), "the selection of experts");
  }
  void GiveExperts(const RouterConfig& config, const DeviceRouting& r, const int32_t* given,
                   int32_t* counts) override {
    cuda::Check(gpu::UseGivenExperts(given, r.m, config.top_k, r.ids, counts, stream_),
                "the use of given experts");
  }
  void RouteWeights(const RouterConfig& config, const DeviceRouting& r) override {
    gpu::RouterWeights(RouterOf(config, r.m), r.logits, r.ids, r.scores, r.weights, stream_);
  }
  void CountTokens(const RouterConfig& config, const DeviceRouting& r, float* counts) override {
    DeviceArray<int32_t> slots(scratch_, config.num_experts);
    Zero(slots.data(), slots.bytes());
    gpu::CountExperts(RouterOf(config, r.m), r.ids, nullptr, 0, slots.data(), stream_);
    cuda::Check(gpu::StoreCounts(slots.data(), config.num_experts, r.m, counts, stream_),
                "the counts of experts");
  }
  void Balance(const RouterConfig& config, const DeviceRows& rows, const DeviceRouting& r,
               const DeviceBalance& balance, float* losses) override {
    const gpu::RouterShape shape = RouterOf(config, r.m);
    const BalanceLosses& weights = balance.weights;
    const int64_t experts = config.num_experts;
    if (weights.batch != 0.0) {
      DeviceArray<int32_t> counts(scratch_, experts + 1);
      cuda::Check(gpu::ToIntegers(balance.counts, experts + 1, counts.data(), stream_),
                  "the counts of experts");
      gpu::BalanceCoefficients(shape, counts.data(), counts.data() + experts, 1, weights.batch,
                               balance.step_tokens, balance.batch, stream_);
    }
    if (weights.sequence != 0.0) {
      DeviceArray<int32_t> counts(scratch_, rows.sequences * experts);
      const auto sets = static_cast<int>(rows.sequences);
      Zero(counts.data(), counts.bytes());
      gpu::CountExperts(shape, r.ids, rows.begins, sets, counts.data(), stream_);
      gpu::BalanceCoefficients(shape, counts.data(), rows.lengths, sets, weights.sequence,
                               balance.step_tokens, balance.sequence, stream_);
    }
    gpu::BalanceLossesOfTokens(shape, BalanceOf(balance, rows), r.logits, r.scores, losses,
                               stream_);
  }
  void RouteGradient(const RouterConfig& config, const DeviceRows& rows, const DeviceRouting& r,
                     const DeviceBalance* balance, const float* dweights, float* dlogits) override {
    const gpu::BalanceParams params =
        balance == nullptr ? gpu::BalanceParams() : BalanceOf(*balance, rows);
    gpu::RouterGradient(RouterOf(config, r.m), params, r.logits, r.scores, r.ids, r.weights,
                        dweights, dlogits, stream_);
  }

  void SelectLocal(Range experts, int32_t* ids, int64_t count) override {
    cuda::Check(gpu::SelectLocalExperts(experts, ids, count, stream_), "the rank's experts");
  }
  void SortSlots(const RouterConfig& config, const int32_t* ids, const DeviceSlots& s,
                 int32_t* loads) override {
    const int64_t slots = s.m * s.k;
    DeviceArray<int32_t> scratch(scratch_, gpu::SlotOrderScratch(slots, config.num_experts));
    gpu::OrderSlots(ids, slots, config.num_experts, {.position = s.place, .begins = s.offsets},
                    scratch.data(), stream_);
    gpu::CountExperts(RouterOf(config, s.m), ids, nullptr, 0, loads, stream_);
  }
  void GatherRows(const RouterConfig& /*config*/, const DeviceSlots& s, const BF16* x,
                  int64_t width, BF16* out) override {
    gpu::GatherExpertRows(ExpertRowsOf(s, width), x, out, stream_);
  }
  void Combine(const RouterConfig& /*config*/, const DeviceSlots& s, const BF16* results,
               const float* weights, int64_t width, bool accumulate, float* y) override {
    const gpu::ConstArray base = accumulate ? gpu::ConstArray(y) : gpu::ConstArray();
    gpu::CombineExpertRows(ExpertRowsOf(s, width), results, weights, base, y, stream_);
  }
  void CombineGradient(const RouterConfig& /*config*/, const DeviceSlots& s, const BF16* dy,
                       const BF16* results, const float* weights, int64_t width, BF16* dresults,
                       float* dweights) override {
    gpu::CombineExpertRowsGradient(ExpertRowsOf(s, width), dy, results, weights, dresults, dweights,
                                   stream_);
  }
  void ScatterRows(const DeviceSlots& s, const float* drows, int64_t width, bool accumulate,
                   float* dx) override {
    const gpu::ConstArray base = accumulate ? gpu::ConstArray(dx) : gpu::ConstArray();
    gpu::CombineExpertRows(ExpertRowsOf(s, width), drows, nullptr, base, dx, stream_);
  }

  void JoinKeys(const LatentKeyShape& s, const BF16* kv, const BF16* latent, BF16* k) override {
    gpu::JoinLatentKeys(KeysOf(s), kv, latent, k, stream_);
  }
  void SplitKeys(const LatentKeyShape& s, const BF16* dk, BF16* dkv, BF16* dlatent) override {
    gpu::SplitLatentKeys(KeysOf(s), dk, dkv, dlatent, stream_);
  }

  void CrossEntropy(const float* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                    float scale, BF16* dlogits, float* losses) override {
    const gpu::LogitShape shape = {.rows = rows, .vocab = vocab};
    DeviceArray<gpu::LogitStatistic> statistics(scratch_, rows);
    gpu::LogitStatistics(shape, logits, targets, statistics.data(), stream_);
    gpu::LogitGradient(shape, logits, targets, statistics.data(), 1, scale, losses, dlogits,
                       stream_);
  }

  void AdamW(const AdamWUpdate& u, int64_t count, float* value, float* gradient, float* first,
             float* second, BF16* copy) override {
    gpu::AdamWStep({.count = count,
                    .value = value,
                    .gradient = gradient,
                    .first = first,
                    .second = second,
                    .rounded = copy,
                    .factors = {.keep = u.keep,
                                .scale = u.gradient_scale,
                                .beta1 = u.beta1,
                                .one_minus_beta1 = u.one_minus_beta1,
                                .beta2 = u.beta2,
                                .one_minus_beta2 = u.one_minus_beta2,
                                .step = u.step,
                                .unbias2 = u.unbias2,
                                .epsilon = u.epsilon}},
                   stream_);
  }
  void SquareSums(const float* x, int64_t count, double* sums) override {
    gpu::BlockSumsOfSquares(x, count, sums, stream_);
  }

 private:
  // Codes and scales in scratch memory.
  struct Fp8Scratch {
    Fp8Scratch(DeviceMemory& memory, int64_t code_count, int64_t scale_count)
        : codes(memory, code_count),
          scales(memory, scale_count),
          view{codes.data(), scales.data()} {}
    DeviceArray<uint8_t> codes;
    DeviceArray<float> scales;
    gpu::Fp8Array view;
  };
  void Forward(const LinearShape& s, const BF16* x, const BF16* w, gpu::Array y, bool accumulate) {
    if (s.fp8 == nullptr) return gpu::LinearForward(ProductOf(s), x, w, y, accumulate, stream_);
    Fp8Product(ProductOf(s), x, {s.fp8->codes, s.fp8->scales}, y, accumulate);
  }
  void Backward(const LinearShape& s, const BF16* dy, const BF16* w, gpu::Array dx,
                bool accumulate) {
    if (s.fp8 == nullptr)
      return gpu::LinearInputGradient(ProductOf(s), dy, w, dx, accumulate, stream_);
    gpu::ProductShape shape = ProductOf(s);
    std::swap(shape.n, shape.k);
    Fp8Product(shape, dy, {s.fp8->transposed, s.fp8->transposed_scales}, dx, accumulate);
  }
  void Fp8Product(const gpu::ProductShape& s, const BF16* x, const gpu::Fp8Operand& w, gpu::Array y,
                  bool accumulate) {
    if (s.rows == 0) return;
    const Fp8Scratch rows(scratch_, s.rows * s.k, s.k / kFp8Block * gpu::Fp8RowStride(s.rows));
    const int32_t* const valid = s.begins == nullptr ? nullptr : s.begins + s.groups;
    gpu::QuantizeRows({.rows = s.rows, .width = s.k, .valid_rows = valid}, x, rows.view, stream_);
    gpu::Fp8Product(s, rows.view, w, y, accumulate, stream_);
  }
  static gpu::SwiGluParams GateUp(const GateUpShape& s, const BF16* gate_up) {
    return {.m = s.m,
            .n = s.n,
            .ld = 2 * s.n,
            .gate = gate_up,
            .up = gate_up + s.n,
            .valid_rows = s.valid_rows};
  }
  template <typename X>
  void Norm(const NormShape<float>& s, const X* x, const float* gain, BF16* y) {
    gpu::RmsNorm({.m = s.m, .n = s.n, .ldx = s.ldx, .eps = s.eps, .x = x, .weight = gain, .y = y},
                 stream_);
  }
  template <typename X>
  void NormGradient(const NormShape<float>& s, const X* x, const float* gain, const X* dy, X* dx,
                    bool accumulate, float* dgain) {
    DeviceArray<float> scratch(scratch_, gpu::RmsNormScratch(s.m, s.n));
    gpu::RmsNormGradient({.m = s.m,
                          .n = s.n,
                          .ldx = s.ldx,
                          .eps = s.eps,
                          .x = x,
                          .weight = gain,
                          .dy = dy,
                          .dx = dx,
                          .accumulate = accumulate,
                          .dweight = dgain,
                          .scratch = scratch.data()},
                         stream_);
  }

  const std::unique_ptr<kernels::Device> device_;
  const gpu::Stream stream_;
  DeviceMemory scratch_;
};

}  // namespace

std::unique_ptr<TrainOps<BF16>> MakeCudaOps(int index) { return std::make_unique<CudaOps>(index); }

}  // namespace switchyard::train
