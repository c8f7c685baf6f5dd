// The two methods whose configuration is a page of its own (inside ReadQuantization).
#pragma once

#include "model/config_quantization.h"

namespace switchyard {

// The object under quantization_config of compressed-tensors: groups of modules with the numbers of
// their weights and inputs.
QuantizationConfig ReadCompressedTensors(const ConfigReader& reader);
// The object that holds ModelOpt's quant_algo, in config.json or hf_quant_config.json.
QuantizationConfig ReadModelOpt(const ConfigReader& reader);

}  // namespace switchyard
