// The memory of a rank, from config.json and the options alone. `serve` sizes its cache by it, and
// `switchyard plan` prints it.
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "core/dtype.h"
#include "model/config.h"
#include "model/options.h"
#include "model/weight_bytes.h"

namespace switchyard {

// Memory of one rank in bytes, without the program itself. On CPUs a part becomes resident when a
// batch first uses it. Doubles, so that absurd sizes do not overflow.
struct RankMemory {
  WeightBytes weights;      // counted as if each rank had its own copy
  double kv_per_token = 0;  // bytes of cache per token
  double states = 0;        // slots of recurrent states
  double activations = 0;   // rows of passes, scratch of layers and of kernels
  double moe = 0;           // MoE buffers: router scores, row lists and rows, results of products
  double logits = 0;        // head buffers
  double tables = 0;        // tables of rotary embeddings
  double scratch = 0;       // scratch of a GPU's kernels, which all passes share
  double exchange = 0;      // symmetric memory, or peer memory and spare experts of a GPU

  double passes() const { return activations + moe + logits + tables; }
  // All but the cache.
  double fixed() const { return weights.total() + states + passes() + scratch + exchange; }
};

// The sizes that the plan of an engine chooses.
struct RankMemoryShape {
  int64_t logit_rows = 0;  // maximum rows of one attention group whose logits a pass computes
  DType kv_dtype = DType::kF32;
  int64_t states = 0;  // slots of recurrent states
};

// The memory of the first or the last rank, whichever has more weights; of the first one with
// MeshShape::expert_ranks. `options`: those of the
// model's constructor. Error kInvalid as from the constructor, for sizes that cannot be sharded.
RankMemory MemoryOfRank(const ModelConfig& config, const ModelOptions& options,
                        const MeshShape& mesh, const RankMemoryShape& shape);

// The weights of the same rank. `load`: with the formats of a GPU's memory, if it is for a GPU.
WeightBytes WeightsOfRank(const ModelConfig& config, const MeshShape& mesh,
                          const LoadOptions& load = {});

}  // namespace switchyard
