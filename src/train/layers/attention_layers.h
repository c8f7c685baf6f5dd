// The two kinds of attention (grouped-query and latent) with their projections: the part of a
// decoder layer between its first norm and the residual addition.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"
#include "model/config.h"
#include "model/families/family.h"
#include "train/layers/linear.h"
#include "train/layers/pointwise.h"

namespace switchyard::train {

// Activations that a forward pass saves for its backward pass.
template <typename T>
struct AttentionState {
  std::vector<T> q_a, q_a_normed;  // MLA: [m, q_lora]
  std::vector<T> q_raw, k_raw;     // q and k before their norms; empty if there are no norms
  std::vector<T> q, k, v;  // after the rotary embedding; grouped: [m, heads, D]; MLA: v is in kv
  std::vector<T> latent, latent_normed;  // MLA: [m, lora + rope], [m, lora]
  std::vector<T> kv;                     // MLA: [m, heads, nope + v]
  std::vector<T> attended;               // [m, heads, Dv]
  std::vector<T> log_sums;               // [heads, m]
};

// Used by the rank's thread only. Forward and Backward do not communicate. If a rank holds only
// some of the heads, `out` and `dx` are partial sums over these heads, for all rows.
template <typename T>
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // x, out [m, H]; writes out. If `out` is null, only fills the state.
  virtual void Forward(const RowLayout& rows, const T* x, AttentionState<T>* state, T* out,
                       ThreadPool& pool) = 0;
  // Writes dx [m, H]; accumulates the gradients of the weights, those of linear layers with `later`
  // (null: now).
  virtual void Backward(const RowLayout& rows, const T* x, AttentionState<T>& state, const T* dout,
                        T* dx, ThreadPool& pool, LaterWeights<T>* later) = 0;
  // Elements of the state of m rows, and of the buffers that Backward holds for `later`.
  virtual int64_t StateElements(int64_t m) const = 0;
  virtual int64_t HeldElements(int64_t m) const = 0;
};

// Constructor arguments of both kinds of attention. `prefix`: "model.layers.3.". cos_sin must
// outlive the layer.
template <typename T>
struct AttentionParts {
  const ModelConfig& config;
  const TensorNames& names;
  std::string prefix;
  int32_t window = 0;
  const float* cos_sin = nullptr;
  ParameterSet<T>& parameters;
  TensorGroup tp = TensorGroup();  // partitions the heads
};

// MakeAttention selects by config: grouped-query attention, or multi-head latent attention in the
// form of DeepSeek-V2 and -V3 (arXiv:2405.04434, section 2.1), without weight absorption.
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeAttention(const AttentionParts<T>& parts);
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeGroupedAttention(const AttentionParts<T>& parts);
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeLatentAttention(const AttentionParts<T>& parts);

}  // namespace switchyard::train
