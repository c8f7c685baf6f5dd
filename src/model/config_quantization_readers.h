// Readers of the two methods with a larger configuration format. Internal to ReadQuantization.
#pragma once

#include <string>

#include "model/config_quantization.h"

namespace switchyard {

// Reads compressed-tensors' quantization_config: groups of modules with the quantization parameters
// of their weights and inputs.
QuantizationConfig ReadCompressedTensors(const ConfigReader& reader);
// Reads the object that contains ModelOpt's quant_algo, in config.json or hf_quant_config.json.
QuantizationConfig ReadModelOpt(const ConfigReader& reader);
// QuantizationConfig::other_cache by kv_cache_scheme, which both methods write. Defined in
// config_compressed_tensors.cc.
std::string OtherCache(const ConfigReader& reader);

}  // namespace switchyard
