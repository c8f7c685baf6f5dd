// Configurations of EAGLE and EAGLE3 heads.
#pragma once

#include <filesystem>

#include "model/config.h"

namespace switchyard {

// Reads DIR/config.json of a head for `target`: one Llama layer. `inner_rows`: the head is of
// EAGLE3, else of EAGLE. Layouts: those of SafeAILab/EAGLE, SGLang (LlamaForCausalLMEagle,
// LlamaForCausalLMEagle3) and vLLM (EagleLlamaForCausalLM, Eagle3LlamaForCausalLM).
//
// If an EAGLE3 head names no layers of its target, it takes the inputs of layers 2, n / 2 and n − 3
// of the target's n layers, as in SGLang and vLLM. Error kInvalid names the file and key: another
// architecture or number of layers, sizes that contradict the target's, settings that are not
// supported.
ModelConfig LoadEagleConfig(const std::filesystem::path& dir, const ModelConfig& target,
                            bool inner_rows);

}  // namespace switchyard
