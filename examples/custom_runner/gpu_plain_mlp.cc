// The runner `plain_mlp` for GPUs: computes the MLP formula element by element.
#include "gpu_plain_mlp.h"

#include <memory>

#include "core/error.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "my_backends.h"

namespace {

using namespace switchyard;
using cuda::ElementType;

class GpuPlainMlp : public cuda::GpuRunner {
 public:
  // Weights are expanded to float32 or bfloat16 at load time.
  cuda::ExpertArithmetic Arithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                    bool /*packs*/) const override {
    return cuda::ChooseArithmetic(experts, dtype, /*hopper=*/false);
  }

  void Run(const cuda::DeviceExperts& experts, const cuda::ExpertActivation& activation,
           const cuda::GpuGroupedRows& rows, const cuda::ProductBuffers& buffers, void* y,
           const cuda::PdlStream& chain) override {
    if (activation.kind != kernels::Activation::kSwiGlu)
      throw Invalid("--moe-runner-backend plain_mlp supports only SwiGLU");
    const cuda::ExpertArithmetic& arithmetic = experts.arithmetic;
    RowProducts p = {.rows = {.offsets = rows.chunk.order.offsets,
                              .counts = rows.chunk.order.counts,
                              .block_experts = rows.chunk.order.block_groups,
                              .first_row = rows.chunk.first,
                              .rows = rows.chunk.rows},
                     .x = rows.a,
                     .w = experts.gate_up.data.data(),
                     .bias = experts.gate_up_bias.as<float>(),
                     .y = buffers.middle.data(),
                     .n = experts.intermediate,
                     .k = experts.hidden,
                     .x_is_bf16 = arithmetic.input == ElementType::kBF16,
                     .w_is_bf16 = arithmetic.weights == ElementType::kBF16,
                     .y_is_bf16 = arithmetic.input == ElementType::kBF16,
                     .silu = true};
    cuda::Check(MultiplyRows(p, chain.stream), "plain_mlp: gate and up");
    p.x = buffers.middle.data();
    p.w = experts.down.data.data();
    p.bias = experts.down_bias.as<float>();
    p.y = y;
    p.n = experts.hidden;
    p.k = experts.intermediate;
    p.y_is_bf16 = arithmetic.output == ElementType::kBF16;
    p.silu = false;
    cuda::Check(MultiplyRows(p, chain.stream), "plain_mlp: down");
  }
};

}  // namespace

void AddGpuPlainMlp(MoeBackends& backends) {
  backends.gpus.runners.Add("plain_mlp", {[] { return std::make_unique<GpuPlainMlp>(); },
                                          "computes the MLP formula element by element"});
}
