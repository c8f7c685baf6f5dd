// The input of MTP layers and EAGLE heads: embeddings with hidden rows of the target.
#pragma once

#include <cstdint>

#include "model/layers/context.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// Computes the residual stream of the first layer from the embedding e of each token and its hidden
// row h (ForwardBatch::hidden). [a, b] is a concatenation.
//
//   MTP layer (DeepSeek-V3, section 2.2 of its report): projection · [norm(e), norm(h)]
//   EAGLE (SafeAILab/EAGLE, cnets1.py):                 projection · [e, h] + bias
//   EAGLE3 (SafeAILab/EAGLE, cnets.py):                 g, and [norm(e), norm(g)] for q, k and v
//
// With EAGLE3, g is projection · h for the target's rows, and h for rows of the head itself.
class HiddenInput {
 public:
  HiddenInput(const LayerContext& context, const HiddenInputWeights& weights)
      : c_(context), w_(weights) {}

  // Floats of the pass's scratch that Join uses.
  int64_t ScratchFloats(int64_t max_tokens) const;
  // Reads the embeddings in pass.residual, and replaces them. EAGLE3: also fills pass.joined.
  void Join(Pass& pass) const;

 private:
  void JoinProjected(Pass& pass) const;  // MTP layers and EAGLE
  void JoinInner(Pass& pass) const;      // EAGLE3
  // Copies the hidden row of each token to y [T, ldy].
  void Gather(const Pass& pass, int64_t width, float* y, int64_t ldy) const;
  // y [T, ldy] = the norm of x [T, ldx]; x itself if the weight is undefined.
  void Norm(const Pass& pass, const float* x, int64_t ldx, const Tensor& weight, float* y,
            int64_t ldy) const;
  void Project(const Pass& pass, const float* x, int64_t width, float* y) const;

  const LayerContext& c_;
  const HiddenInputWeights& w_;
};

}  // namespace switchyard
