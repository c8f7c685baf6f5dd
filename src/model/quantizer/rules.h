// Which linears `switchyard quantize` packs, and into which formats.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_quantization.h"
#include "model/packed_format.h"

namespace switchyard {

// Linears that readers of compressed-tensors expect plain: MLA's kv_b_proj, which is absorbed,
// eh_proj of MTP layers, and DeepSeek-V4's wo_a, which has a matrix for each group of heads.
inline constexpr std::string_view kAlwaysPlain[] = {"self_attn.kv_b_proj", "eh_proj", "attn.wo_a"};

// The settings of `switchyard quantize`, from flags and from a file of rules.
struct QuantizeRules {
  PackedFormat format;               // format of all linears that no rule selects; empty name: none
  std::vector<SchemeRule> rules;     // the first match applies; a plain scheme: not packed
  std::vector<std::string> ignored;  // patterns, as the user spelled them
};

// Adds the rules of a JSON file (ReadSchemeRules) to *rules. Error kInvalid for more than nine.
void ReadQuantizeRules(const std::filesystem::path& file, QuantizeRules* rules);

// The rules as a loader applies them while it reads a plain checkpoint (Packing::kWhileLoading).
// Linears of kAlwaysPlain stay plain. mxfp4 packs routed experts only, unless rules name others.
// int4 and nvfp4 keep kLatentProjections plain, unless rules name them.
QuantizationConfig ConfigOf(const QuantizeRules& rules);

}  // namespace switchyard
