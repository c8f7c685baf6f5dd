// Formats of packed linears as users name them, and files of rules that choose among them:
// `--quantization-config`, and `switchyard quantize --config`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_quantization.h"
#include "model/config_reader.h"

namespace switchyard {

// A format of packed weights.
struct PackedFormat {
  std::string name;          // one of kPackedFormats, or the name of `--quantization` for it
  int64_t group_size = 32;   // int4 only: columns that share a scale
  bool zero_points = false;  // int4 only
};

inline constexpr std::string_view kPackedFormats = "int4, int8, fp8, fp8-channel, mxfp4, nvfp4";

// Units of int4 group sizes: a group size must be a multiple of kFileGroupUnit in files of
// compressed-tensors, and of kMemoryGroupUnit in memory.
inline constexpr int64_t kFileGroupUnit = 8, kMemoryGroupUnit = 2;

// The scheme of linears that are packed into `format`. Its activation format is that of
// `--quantization` with the same weights, so that both serve the same outputs. Error kInvalid if
// the name is unknown or group_size is not a positive multiple of `group_unit`. `where`: prefix of
// error messages.
LinearScheme SchemeOf(const PackedFormat& format, int64_t group_unit, const std::string& where);

// "re:" marks a regular expression. Other patterns are parts of a name ("self_attn", "lm_head").
ModulePattern ParsePattern(const std::string& text);

// Reads the rules of a JSON object:
//   {"rules": [{"targets": ["self_attn"], "method": "int8"},
//              {"targets": ["re:.*experts.*"], "method": "int4", "group_size": 64,
//               "zero_points": true},
//              {"targets": ["shared_experts"], "method": "none"}]}
// Error kInvalid names the key of an unknown or invalid member.
std::vector<SchemeRule> ReadSchemeRules(const ConfigReader& reader, int64_t group_unit);

}  // namespace switchyard
