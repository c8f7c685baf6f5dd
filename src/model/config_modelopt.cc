// Reader of NVIDIA ModelOpt: one `quant_algo` for all linears but the excluded ones
// (https://github.com/NVIDIA/TensorRT-Model-Optimizer, torch/export).
#include <fmt/format.h>

#include "core/error.h"
#include "model/config_quantization_readers.h"

namespace switchyard {
namespace {

LinearScheme Int4(const ConfigReader& reader, ActivationFormat activation) {
  return {.packing = Packing::kModelOptInt4,
          .format = WeightFormat::kInt4Group,
          .group_size = reader.IntOr({"group_size"}, 128, 1, 1 << 20),
          .activation = activation};
}

LinearScheme SchemeOf(const ConfigReader& reader, const std::string& algorithm) {
  if (algorithm == "FP8") {
    return {.packing = Packing::kFp8,
            .format = WeightFormat::kFp8Channel,
            .activation = ActivationFormat::kFp8Tensor};
  }
  if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    return {.packing = Packing::kFp8,
            .format = WeightFormat::kFp8Channel,
            .activation = ActivationFormat::kFp8Token};
  }
  // Four-bit inputs are not used in computation: such rows stay float32.
  if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") {
    const int64_t group = reader.IntOr({"group_size"}, kNvfp4BlockSize, 1, 1 << 20);
    if (group != kNvfp4BlockSize) {
      throw Invalid("{} is {}; NVFP4 supports only groups of {}", reader.Where("group_size"), group,
                    kNvfp4BlockSize);
    }
    return {.packing = Packing::kModelOptNvfp4, .format = WeightFormat::kNvfp4};
  }
  if (algorithm == "W4A16_AWQ") return Int4(reader, ActivationFormat::kNone);
  if (algorithm == "W4A8_AWQ") return Int4(reader, ActivationFormat::kFp8Tensor);
  throw Invalid(
      "{} is \"{}\"; supported are FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4, W4A16_AWQ "
      "and W4A8_AWQ",
      reader.Where("quant_algo"), algorithm);
}

}  // namespace

QuantizationConfig ReadModelOpt(const ConfigReader& reader) {
  const std::string algorithm = reader.StringOr({"quant_algo"}, "");
  const std::string cache = reader.StringOr({"kv_cache_quant_algo"}, "");
  QuantizationConfig config{.names = {"modelopt"}};
  if (!cache.empty() && cache != "FP8")
    config.other_cache = fmt::format("{} is {}", reader.Where("kv_cache_quant_algo"), cache);
  // In config.json, an object describes the cache in place of a name.
  if (config.other_cache.empty()) config.other_cache = OtherCache(reader);
  config.only_cache = algorithm.empty() && (!cache.empty() || reader.Object("kv_cache_scheme"));
  if (config.only_cache) return config;
  config.rules.push_back({SchemeOf(reader, algorithm), {}});
  if (algorithm.starts_with("FP8")) config.names.emplace_back("modelopt_fp8");
  if (algorithm == "NVFP4") config.names.emplace_back("modelopt_fp4");
  for (const char* key : {"exclude_modules", "ignore"}) {
    for (std::string& name : reader.Strings(key)) {
      config.ignored.push_back({ModulePattern::Kind::kGlob, std::move(name)});
    }
  }
  return config;
}

}  // namespace switchyard
