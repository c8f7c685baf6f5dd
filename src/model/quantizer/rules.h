// Which linears `switchyard quantize` packs, and into which formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_quantization.h"

namespace switchyard {

// A format of packed weights.
struct PackedFormat {
  std::string name;          // of kPackedFormats, or the name of `--quantization` for it
  int64_t group_size = 32;   // of int4
  bool zero_points = false;  // of int4
};

inline constexpr std::string_view kPackedFormats = "int4, int8, fp8, fp8-channel, mxfp4, nvfp4";

// Linears that readers of compressed-tensors expect plain: MLA's kv_b_proj, which is absorbed, and
// eh_proj of MTP layers.
inline constexpr std::string_view kAlwaysPlain[] = {"self_attn.kv_b_proj", "eh_proj"};

// The settings of `switchyard quantize`, from flags and from a file of rules.
struct QuantizeRules {
  PackedFormat format;               // of all linears that no rule selects; empty name: none
  std::vector<SchemeRule> rules;     // the first match applies; a plain scheme: not packed
  std::vector<std::string> ignored;  // patterns, as the user spelled them
};

// The scheme of linears that are packed into `format`. Its activation format is that of
// `--quantization` with the same weights, so that both serve the same outputs. Error kInvalid if
// the name is unknown or group_size is not a positive multiple of 8. `where`: of messages.
LinearScheme SchemeOf(const PackedFormat& format, const std::string& where);

// "re:" marks a regular expression. Other patterns are parts of a name ("self_attn", "lm_head").
ModulePattern ParsePattern(const std::string& text);

// Adds the rules of a JSON file to *rules:
//   {"rules": [{"targets": ["self_attn"], "method": "int8"},
//              {"targets": ["re:.*experts.*"], "method": "int4", "group_size": 64,
//               "zero_points": true},
//              {"targets": ["shared_experts"], "method": "none"}]}
// Error kInvalid names the key of an unknown or invalid member.
void ReadQuantizeRules(const std::filesystem::path& file, QuantizeRules* rules);

// The rules as a loader applies them while it reads a plain checkpoint (Packing::kWhileLoading).
// kAlwaysPlain is ignored. mxfp4 packs routed experts only, unless rules name others. int4 and
// nvfp4 keep kLatentProjections plain, unless rules name them.
QuantizationConfig ConfigOf(const QuantizeRules& rules);

}  // namespace switchyard
