// Readers of the two methods with a larger configuration format. Internal to ReadQuantization.
#pragma once

#include "model/config_quantization.h"

namespace switchyard {

// Reads compressed-tensors' quantization_config: groups of modules with the quantization parameters
// of their weights and inputs.
QuantizationConfig ReadCompressedTensors(const ConfigReader& reader);
// Reads the object that contains ModelOpt's quant_algo, in config.json or hf_quant_config.json.
QuantizationConfig ReadModelOpt(const ConfigReader& reader);

}  // namespace switchyard
