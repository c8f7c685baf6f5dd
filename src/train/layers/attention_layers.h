// The two attention layers, with projections: what lies between a layer's first norm and its
// residual.
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
#include "train/layers/rows.h"

namespace switchyard::train {

// What a forward pass leaves for its backward pass.
template <typename T>
struct AttentionState {
  std::vector<T> q_a, q_a_normed;        // MLA: [m, q_lora]
  std::vector<T> q_raw, k_raw;           // before their norms, where there are any
  std::vector<T> q, k, v;                // rotated; grouped: [m, heads, D]; MLA: v lies in kv
  std::vector<T> latent, latent_normed;  // MLA: [m, lora + rope], [m, lora]
  std::vector<T> kv;                     // MLA: [m, heads, nope + v]
  std::vector<T> attended;               // [m, heads, Dv]
  std::vector<T> log_sums;               // [heads, m]
};

// Borrowed by a layer; used by the rank's thread. Neither call communicates: of a rank that has
// some of the heads, out and dx are partial sums, of all rows.
template <typename T>
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // x, out [m, H], out written.
  virtual void Forward(const RowLayout& rows, const T* x, AttentionState<T>* state, T* out,
                       ThreadPool& pool) = 0;
  // dx [m, H] written; gradients of the weights added.
  virtual void Backward(const RowLayout& rows, const T* x, AttentionState<T>& state, const T* dout,
                        T* dx, ThreadPool& pool) = 0;
};

// What both kinds are made from. `prefix`: "model.layers.3.". cos_sin must live as long.
template <typename T>
struct AttentionParts {
  const ModelConfig& config;
  const TensorNames& names;
  std::string prefix;
  int32_t window = 0;
  const float* cos_sin = nullptr;
  ParameterSet<T>& parameters;
  TensorGroup tp = TensorGroup();  // shares the heads
};

// Grouped-query attention, by config's kind: latent attention in DeepSeek-V2 and -V3's form
// (arXiv:2405.04434, section 2.1), not absorbed.
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeAttention(const AttentionParts<T>& parts);
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeGroupedAttention(const AttentionParts<T>& parts);
template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeLatentAttention(const AttentionParts<T>& parts);

}  // namespace switchyard::train
