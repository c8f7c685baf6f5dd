// The config.json of a packed checkpoint.
#pragma once

#include <string>

#include "model/quantizer/plan.h"

namespace switchyard {

// The checkpoint's config.json with quantization_config in compressed-tensors' form. `text`: the
// original file. Linears without a rule, and those in plan.plain, are in `ignore` by their full
// names, since readers of the format compare whole names. With one rule the format is its own, else
// "mixed-precision" with a format for each group.
std::string PackedConfig(const std::string& text, const QuantizePlan& plan);

}  // namespace switchyard
