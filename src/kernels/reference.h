// Reference implementation of every op of kernels/ops.h: plain loops on one thread, sums in double.
// Baseline of the kernel tests, and the fallback for CPUs without AVX2.
#pragma once

#include "kernels/ops.h"

namespace switchyard::kernels::reference {

void Linear(const LinearParams& p);
void GroupedMlp(const GroupedMlpParams& p);
void GroupedGateUp(const GroupedMlpParams& p);
void GroupedDown(const GroupedMlpParams& p);
void RmsNorm(const RmsNormParams& p);
void LayerNorm(const LayerNormParams& p);
void AddInPlace(float* y, const float* x, int64_t count);
void RoundTo(DType dtype, float* x, int64_t count);
void Rope(const RopeParams& p);
void Attention(const AttentionParams& p);
void LatentAttention(const LatentAttentionParams& p);  // without `selected`
void SelectKeys(const SelectKeysParams& p);
void HeadLinear(const HeadLinearParams& p);
void StoreKv(const StoreKvParams& p);
void Embed(const EmbedParams& p);

}  // namespace switchyard::kernels::reference
