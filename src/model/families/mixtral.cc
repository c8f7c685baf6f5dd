// Mixtral 8x7B and 8x22B: softmax router whose weights are always renormalised over the top k.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 0, config);
  ReadRope(reader, 1e6, config->attention.head_dim, config);
  MarkAllMoe(config);
  SetWindows(reader, config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.renormalize = true;
}

constexpr Family kFamilies[] = {{.architecture = "MixtralForCausalLM",
                                 .model_type = "mixtral",
                                 .read_config = ReadConfig,
                                 .names = MixtralNames,
                                 .tool_parser = "mistral"}};

}  // namespace

std::span<const Family> MixtralFamily() { return kFamilies; }

}  // namespace switchyard
