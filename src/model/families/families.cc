#include <algorithm>
#include <string>
#include <vector>

#include "model/families/family.h"

namespace switchyard {
namespace {

std::vector<Family> Collect() {
  std::vector<Family> all;
  for (std::span<const Family> page :
       {MixtralFamily(), Qwen2MoeFamily(), Qwen3MoeFamily(), OlmoeFamily(), DeepseekV2Family(),
        DeepseekV3Family(), GptOssFamily(), Glm4MoeFamily(), LlamaFamily(), QwenFamily(),
        Glm4MoeLiteFamily(), Dots1Family(), MiniMaxM2Family(), Ernie45MoeFamily(),
        SolarOpenFamily()}) {
    all.insert(all.end(), page.begin(), page.end());
  }
  return all;
}

}  // namespace

std::span<const Family> Families() {
  static const std::vector<Family> families = Collect();
  return families;
}

const Family* FindFamily(std::string_view architecture) {
  const auto families = Families();
  // A classifier, or a decoder without a head, of a family: Qwen3ForSequenceClassification,
  // Qwen3Model.
  std::string causal(architecture);
  for (const std::string_view other : {"ForSequenceClassification", "Model"})
    if (architecture.ends_with(other))
      causal.replace(causal.size() - other.size(), other.size(), "ForCausalLM");
  const auto it = std::ranges::find(families, causal, &Family::architecture);
  return it == families.end() ? nullptr : &*it;
}

}  // namespace switchyard
