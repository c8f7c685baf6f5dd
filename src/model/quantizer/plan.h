// What `switchyard quantize` writes: for each tensor of a checkpoint its packed or copied form, and
// the file that holds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "model/config.h"
#include "model/weights/safetensors.h"
#include "model/weights/source.h"

namespace switchyard {

struct PlannedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // bytes from the end of the file's header

  uint64_t bytes() const;
};

// A matrix that is packed, or a tensor that is copied.
struct PlannedPart {
  const StoredTensor* source = nullptr;
  bool packed = false;
  std::string module;              // packed: its module, "model.layers.0.mlp.experts.3.up_proj"
  MatrixRequest request;           // packed: the request for the matrix, with its scheme
  std::vector<PlannedTensor> out;  // packed: in the order of TensorsOf; else the tensor itself

  uint64_t bytes() const;         // total of the output tensors
  uint64_t source_bytes() const;  // bytes read to create them
};

struct PlannedShard {
  std::string file;  // name in the output directory
  std::vector<PlannedPart> parts;
  uint64_t bytes = 0;  // total of the tensors, without the header
};

struct QuantizePlan {
  ModelConfig config;  // `quantization` has the rules of this run
  std::vector<PlannedShard> shards;
  std::vector<std::string> plain;  // linears that stay plain: "lm_head", "model.layers.0.mlp.gate"
  uint64_t source_bytes = 0;       // total of all parts
  uint64_t output_bytes = 0;
};

// The tensors of a packed matrix [n, k] in compressed-tensors' layout, without offsets:
//   int4-group: weight_packed int32 [n, k/8], weight_scale bfloat16 [n, k/g], weight_shape int64
//     [2], and with zero points weight_zero_point int32 [n/8, k/g]
//   int8, fp8: weight, weight_scale float32 [n, 1], or [ceil(n/128), ceil(k/128)] for fp8 blocks
//   mxfp4: weight_packed uint8 [n, k/2], weight_scale uint8 [n, k/32]
//   nvfp4: weight_packed uint8 [n, k/2], weight_scale float8_e4m3 [n, k/16], weight_global_scale
//     float32 [1]
std::vector<PlannedTensor> TensorsOf(const std::string& module, const LinearScheme& scheme,
                                     int64_t n, int64_t k);

// Plans all tensors of the checkpoint, in the order of its files. Packs the linears that
// config.quantization selects among those that BuildWeights requests, including those of the first
// MTP layer. Experts that are stacked in one tensor get a tensor each, under the family's names. A
// file has at most `shard_bytes`, unless a single tensor is larger. Borrows the checkpoint. Error
// kInvalid
//   - if a selected linear does not fit the format (group size, multiples of 8 rows),
//   - for interleaved stacked experts (gpt-oss), which compressed-tensors cannot store,
//   - if no linear is selected; if a rule or an ignored pattern matches none,
//   - BuildWeights' errors about the checkpoint.
QuantizePlan PlanQuantization(const Checkpoint& checkpoint, const ModelConfig& config,
                              uint64_t shard_bytes);

}  // namespace switchyard
