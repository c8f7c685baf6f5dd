// Quantization of linears: as read from config.json, or requested by `--quantization`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "quant/formats.h"

namespace switchyard {

// Storage layout of a linear in its files. Documented at its reader (weights/packing_*.cc).
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
  kWhileLoading,   // kPlain in the files, packed into `format` on load
  kGguf,           // a ggml type that stays packed (gguf/gguf_source.h)
};

struct LinearScheme {
  Packing packing = Packing::kPlain;
  WeightFormat format = WeightFormat::kF32;  // format in memory; unused if packing is kPlain
  int64_t group_size = 0;       // kInt4Group: columns that share a scale; 0: the whole row
  bool zeros = false;           // kInt4Group: zero points are stored
  bool zeros_less_one = false;  // kGptq: its first layout stores zero points minus 1
  // Columns may belong to groups in any order (g_idx). No WeightFormat stores such a linear,
  // so it is held in the model's dtype.
  bool act_order = false;
  ActivationFormat activation = ActivationFormat::kNone;

  bool operator==(const LinearScheme&) const = default;
};

// Selects modules by names like "model.layers.0.mlp.experts.3.up_proj".
struct ModulePattern {
  enum class Kind : uint8_t {
    kName,   // consecutive parts of the name: "lm_head", "mlp.gate", "model.layers.0.self_attn"
    kRegex,  // matches from the start of the name
    kGlob,   // `*` and `?`, against the name or an enclosing module
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

// MLA's projections to its latent vectors, and those of an indexer. They stay plain if all linears
// are packed into 4 bits: they are small, and every head of a token depends on each latent element
// and on the selected keys.
inline constexpr std::string_view kLatentProjections[] = {
    "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.indexer", "attn.wq_a",
    "attn.wkv"};  // the last two: compressed attention

// Linears that --quantization never packs. MLA splits kv_b_proj by heads and absorbs it into
// queries and outputs. Compressed attention has a matrix in wo_a for each group of heads, which
// files of quantized weights cannot store. An entry is a mean of many rows, and the indexer selects
// entries, so errors of their small matrices reach many positions.
inline constexpr std::string_view kPlainProjections[] = {"self_attn.kv_b_proj", "attn.wo_a",
                                                         "attn.compressor", "attn.indexer"};

struct QuantizationConfig {
  // quant_method of the checkpoint; empty: its weights are not quantized.
  std::string method;
  std::vector<std::string> names;  // values of `--quantization` that the checkpoint satisfies
  std::vector<SchemeRule> rules;   // the first match applies; no match: plain
  std::vector<ModulePattern> ignored;
  // Rules of --quantization-config. They precede `rules` and `ignored`, and they alone apply to the
  // embedding and the head too.
  std::vector<SchemeRule> chosen;
  // Schemes of single linears, by name without the expert's number, and of the head. `chosen` has
  // priority over them. If there are any, `rules` is empty.
  std::map<std::string, LinearScheme, std::less<>> stored;
  // Activation rows of linears stored in bfloat16 are rounded to bfloat16.
  bool bfloat16_rows = false;
  // Activation rows of linears with 4-bit weights are rounded to kInt8Group, unless the checkpoint
  // defines their format. Routers and MLA's absorbed products keep float32 rows. CPUs only.
  bool int8_group_rows = false;
  // Activation rows of linears with FP8 weights are rounded to bfloat16, unless the checkpoint
  // defines their format. CPUs only.
  bool fp8_bfloat16_rows = false;
  // Matrices that a safetensors checkpoint stores in 4 bits stay in the order of its files, which
  // ranks of a host map together (--cpu-weight-layout). Else they are packed into panels
  // (quant/panels.h) if rows are int8.
  bool stored_layout = false;
  // Whether scales of an e4m3 cache are read (--kv-cache-dtype fp8_e4m3). Checkpoints without them
  // have scale 1.
  bool cache_scales = false;
  // What the checkpoint says about its scales of a cache, if they are for another format than e4m3:
  // "config.json: quantization_config.kv_cache_scheme is int of 8 bits by tensor". Else empty.
  std::string other_cache;
  // Whether the checkpoint says that its cache is quantized, and that its weights are not.
  bool only_cache = false;

  bool none() const {
    return method.empty() && rules.empty() && chosen.empty() && stored.empty();
  }  // every linear is plain
  // gpt-oss: stacked experts are stored as MXFP4 `_blocks` and `_scales`, which need no rule.
  bool mxfp4_blocks() const { return method == "mxfp4"; }

  bool operator==(const QuantizationConfig&) const = default;
};

// `--quantization`, `--quantization-config` and `--quantize-activations`.
struct QuantizationFlags {
  std::string method;  // empty: as in the checkpoint
  // A file, or JSON text: {"rules": [{"targets": […], "method": …, "group_size": …}, …]}. A target
  // is a name or a regular expression, as in ModulePattern. Empty: no rules.
  std::string rules;
  // auto: int8 if the checkpoint was made for int8 arithmetic, else float32. ReadModelConfig
  // (engine/config.h) describes the exceptions. always: the activation format that GPUs use for the
  // weights, including bfloat16 rows for linears in bfloat16 (not for routers, embedding and head).
  // never: float32.
  std::string activations = "auto";
  // --cpu-weight-layout: auto, panels or stored. Layout of 4-bit weights of safetensors checkpoints
  // on CPUs. ReadModelConfig (engine/config.h) describes auto.
  std::string layout = "auto";
};

// Reads `quantization_config`. Error kInvalid names the key and value of unsupported settings.
// `mxfp4_blocks`: the family may store experts as MXFP4 `_blocks` and `_scales` (gpt-oss).
QuantizationConfig ReadQuantization(const ConfigReader& reader, bool mxfp4_blocks);
// Reads ModelOpt's hf_quant_config.json, for a config.json without quantization_config.
QuantizationConfig ReadModelOptFile(const ConfigReader& reader);

// Reads the value of QuantizationFlags::rules (model/packed_format.h). Error kInvalid names the key
// and value at fault.
std::vector<SchemeRule> ReadQuantizationRules(const std::string& location);

// Error kInvalid if the method is unknown, or if the checkpoint is already quantized by another
// method (the error names both). Experts, attention and dense feed-forwards are packed on load,
// except kPlainProjections; "mxfp4" packs the routed experts only.
void ApplyFlags(const QuantizationFlags& flags, QuantizationConfig* config);

// Maps a module's name to its scheme. Immutable; any thread may use it.
class LinearSchemes {
 public:
  // Error kInvalid for a malformed regular expression.
  explicit LinearSchemes(const QuantizationConfig& config);
  ~LinearSchemes();
  const LinearScheme& Of(std::string_view module) const;
  // The scheme of the embedding or of the head. Unlike other plain linears, a plain embedding or
  // head always has float32 rows.
  const LinearScheme& OfVocabulary(std::string_view module) const;

 private:
  struct Table;
  std::unique_ptr<const Table> table_;
};

}  // namespace switchyard
