// What config.json says of quantized linears, and what `--quantization` makes of plain ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "quant/formats.h"

namespace switchyard {

// How a linear lies in its files. Each is described where it is read (weights/packing_*.cc).
enum class Packing : uint8_t {
  kPlain,          // float32, bfloat16 or float16
  kFp8,            // float8_e4m3 with scales of blocks, rows or the tensor
  kInt8,           // int8 with scales of rows or the tensor
  kPackedInt4,     // compressed-tensors' pack-quantized
  kGptq,           // AutoGPTQ, GPTQModel
  kAwq,            // AutoAWQ, version gemm
  kSignedInt4,     // experts of W4AFP8 checkpoints
  kModelOptInt4,   // ModelOpt's W4A16_AWQ and W4A8_AWQ
  kMxfp4,          // compressed-tensors' mxfp4-pack-quantized
  kNvfp4,          // compressed-tensors' nvfp4-pack-quantized
  kModelOptNvfp4,  // ModelOpt's NVFP4
  kWhileLoading,   // kPlain in the files, packed into `format` when it is read
};

struct LinearScheme {
  Packing packing = Packing::kPlain;
  WeightFormat format = WeightFormat::kF32;  // in memory; means nothing where packing is kPlain
  int64_t group_size = 0;       // kInt4Group: columns that share a scale; 0: the whole row
  bool zeros = false;           // kInt4Group: zero points are stored
  bool zeros_less_one = false;  // kGptq: its first layout stores zero points less 1
  // Columns may be assigned to groups in any order (g_idx). Such a linear is none of the formats
  // and is held in the model's dtype.
  bool act_order = false;
  ActivationFormat activation = ActivationFormat::kNone;

  bool operator==(const LinearScheme&) const = default;
};

// Says which modules are meant, by names like "model.layers.0.mlp.experts.3.up_proj".
struct ModulePattern {
  enum class Kind : uint8_t {
    kName,   // a run of whole parts of the name: "lm_head", "mlp.gate", "model.layers.0.self_attn"
    kRegex,  // matches from the name's start on
    kGlob,   // `*` and `?`, of the name or of a module around it
  };
  Kind kind = Kind::kName;
  std::string text;

  bool operator==(const ModulePattern&) const = default;
};

struct SchemeRule {
  LinearScheme scheme;
  std::vector<ModulePattern> targets;  // empty: every linear

  bool operator==(const SchemeRule&) const = default;
};

struct QuantizationConfig {
  std::string method;              // quant_method of the checkpoint; empty: none
  std::vector<std::string> names;  // of `--quantization` that mean what the checkpoint is
  std::vector<SchemeRule> rules;   // the first that fits counts; none fits: plain
  std::vector<ModulePattern> ignored;
  // Rows that meet linears stored in bfloat16 are rounded to it.
  bool bfloat16_rows = false;

  bool none() const { return method.empty() && rules.empty(); }  // every linear is plain
  // gpt-oss: stacks of experts are stored as MXFP4 `_blocks` and `_scales`, which need no rule.
  bool mxfp4_blocks() const { return method == "mxfp4"; }

  bool operator==(const QuantizationConfig&) const = default;
};

// `--quantization` and `--quantize-activations`.
struct QuantizationFlags {
  std::string method;  // empty: as the checkpoint is
  // auto: int8 where the checkpoint was made for it (that is its arithmetic), else float32, but for
  // what ReadModelConfig adds (engine/config.h); always: what GPUs have for the weights, bfloat16
  // rows for linears in bfloat16 included (not for routers, embedding and head); never: float32.
  std::string activations = "auto";
};

// Reads `quantization_config`. Error kInvalid names key and value of what is not supported.
// `mxfp4_blocks`: the family has fused experts.
QuantizationConfig ReadQuantization(const ConfigReader& reader, bool mxfp4_blocks);
// Reads ModelOpt's hf_quant_config.json, which counts where config.json says nothing.
QuantizationConfig ReadModelOptFile(const ConfigReader& reader);

// Error kInvalid where the method is unknown or is not the one of a checkpoint that is quantized
// already (both are named). Experts, attention and dense feed-forwards are packed while they load,
// but for MLA's kv_b_proj; "mxfp4" means the routed experts alone.
void ApplyFlags(const QuantizationFlags& flags, QuantizationConfig* config);

// The scheme of each module by its name. Immutable; any thread.
class LinearSchemes {
 public:
  // Error kInvalid where a regular expression is malformed.
  explicit LinearSchemes(const QuantizationConfig& config);
  ~LinearSchemes();
  const LinearScheme& Of(std::string_view module) const;

 private:
  struct Table;
  std::unique_ptr<const Table> table_;
};

}  // namespace switchyard
