// Attention to a sliding window and to compressed entries (DeepSeek-V4) of one layer on one rank of
// an attention group.
#pragma once

#include <cstdint>

#include "model/layers/context.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// Each rank stores the rows, the entries and the index entries of all positions, and computes its
// heads. Every rank of the group selects the same entries.
//
// One object serves all layers. States of unfinished blocks are in KvStorage::states.
class CompressedAttention {
 public:
  explicit CompressedAttention(const LayerContext& context);

  // Floats of the pass's scratch that a layer uses.
  int64_t ScratchFloats(int64_t max_tokens) const;
  // x [T, H] (normalised) → out [T, H], this rank's partial sum over its heads; the caller
  // all-reduces. Stores rows and finished entries, and advances the states of the pass's sequences.
  void Run(Pass& pass, const CompressedAttentionWeights& w, int64_t layer, const float* x,
           float* out) const;

 private:
  // Arrays in the pass's scratch.
  struct Arrays {
    float* q_a;            // [T, q_lora]
    float* q;              // [T, heads, D]
    float* kv;             // [T, D]
    float *rows, *gates;   // [T, 2 · D]: of entries, then of index entries
    float* entries;        // [T, D]
    float* index_q;        // [T, index_heads, index_head_dim]
    float* index_weights;  // [T, index_heads]
    float* attended;       // [T, heads, D]
    float* grouped;        // [T, output groups, output_rank]
  };
  Arrays TakeArrays(Pass& pass) const;
  void Project(Pass& pass, const Arrays& a, const CompressedAttentionWeights& w, int64_t layer,
               const float* x) const;
  // Adds the rows of the pass to the blocks of the layer's entries, or of its index entries.
  void AddToBlocks(Pass& pass, const Arrays& a, const EntryWeights& w, int64_t layer, bool index,
                   const float* x) const;
  void SelectEntries(Pass& pass, const Arrays& a, const CompressedAttentionWeights& w,
                     int64_t layer, const float* x) const;
  void Attend(Pass& pass, const Arrays& a, const CompressedAttentionWeights& w,
              int64_t layer) const;
  // Rotates the last elements of each head by its position.
  void Rotate(const Pass& pass, float* x, int64_t heads, int64_t width, int64_t layer) const;
  void Multiply(const float* x, const LinearWeight& w, int64_t rows, float* y) const;

  const LayerContext& c_;
  const AttentionConfig& a_;
  const int64_t heads_, groups_;  // of this rank
};

// The result of ScratchFloats. `heads`: of the rank.
int64_t CompressedScratchFloats(const AttentionConfig& attention, int64_t heads, int64_t tokens);

}  // namespace switchyard
