// Linear attention (LinearAttentionConfig) of one layer on one rank of an attention group.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/recurrent.h"
#include "model/layers/context.h"
#include "model/linear_layout.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// One object serves all layers. The states are in KvStorage::states.
class LinearAttention {
 public:
  // Requires ModelConfig::linear.
  explicit LinearAttention(const LayerContext& context);

  // Floats of the pass's scratch that a layer uses.
  int64_t ScratchFloats(int64_t max_tokens) const;
  // x [T, H] (normalised) → out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces. Advances the states of the pass's sequences.
  void Run(Pass& pass, const LinearAttentionWeights& w, int64_t layer, const float* x,
           float* out) const;

 private:
  // Arrays in the pass's scratch, in the order of LinearLayout.
  struct Arrays {
    float* projected;  // [T, width]
    float* mixed;      // [T, mixed_width]; without a convolution `projected`
    int64_t mixed_ld;  // row stride of `mixed`
    float* ba;         // [T, gates_width]
    float* gates;      // [T, factors_width]
    float* low;        // [T, low_width]
    float* attended;   // [T, value heads · value_dim]
    float* chunks;     // GatedDeltaParams::chunk_scratch; null: rows are not chunked
  };
  Arrays TakeArrays(Pass& pass) const;
  void Project(const Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
               const float* x) const;
  void Convolve(Pass& pass, const Arrays& a, const LinearAttentionWeights& w, int64_t layer) const;
  // Norms and rotates q and k in their places in the projections.
  void NormAndRotate(const Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                     int64_t layer) const;
  void Recur(Pass& pass, const Arrays& a, const LinearAttentionWeights& w, int64_t layer) const;
  void Gate(const Pass& pass, const Arrays& a, const LinearAttentionWeights& w) const;
  // The settings of kernels::GatedNormParams. own_weights: each head has its own.
  struct HeadNorm {
    int64_t heads = 0, n = 0, group = 1, z_stride = 0;
    float eps = 0;
    bool own_weights = false;
    kernels::OutputGate gate = kernels::OutputGate::kSilu;
  };
  HeadNorm NormOfOutput() const;

  const LayerContext& c_;
  const LinearAttentionConfig& l_;
  const int64_t heads_;  // key heads of this rank
  const LinearLayout at_;
  const bool chunks_;  // whether rows may be chunked
};

// The result of ScratchFloats. `heads`: key heads of the rank. `chunks`: whether its device may
// chunk rows.
int64_t LinearScratchFloats(const LinearAttentionConfig& linear, int64_t heads, int64_t tokens,
                            bool chunks);

}  // namespace switchyard
