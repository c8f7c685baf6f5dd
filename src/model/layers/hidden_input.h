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
//   MTP layer with residual streams (DeepSeek-V4):      embedding_projection · norm(e) +
//                                                       projection · norm(h_i) for each stream i
//
// With EAGLE3, g is projection · h for the target's rows, and h for rows of the head itself.
class HiddenInput {
 public:
  HiddenInput(const LayerContext& context, const HiddenInputWeights& weights)
      : c_(context), w_(weights) {}

  // Floats of the pass's scratch that Join uses.
  int64_t ScratchFloats(int64_t max_tokens) const;
  // Reads the embeddings in pass.residual, and replaces them. EAGLE3: also fills pass.joined. With
  // residual streams, reads the embeddings in pass.normed, and fills pass.residual.
  void Join(Pass& pass) const;

 private:
  void JoinProjected(Pass& pass) const;  // MTP layers and EAGLE
  void JoinInner(Pass& pass) const;      // EAGLE3
  void JoinStreams(Pass& pass) const;    // MTP layers with residual streams
  // Copies the hidden row of each token to y [T, ldy].
  void Gather(const Pass& pass, int64_t width, float* y, int64_t ldy) const;
  // y [T, ldy] = the norm of x [T, ldx]; x itself if the weight is undefined.
  void Norm(const Pass& pass, const float* x, int64_t ldx, const Tensor& weight, float* y,
            int64_t ldy) const;
  void Project(const Pass& pass, const float* x, int64_t width, float* y) const;

  const LayerContext& c_;
  const HiddenInputWeights& w_;
};

// Elements of scratch that Join uses for a row; 0 for models without hidden rows.
int64_t HiddenInputScratchWidth(const ModelConfig& config);

}  // namespace switchyard
