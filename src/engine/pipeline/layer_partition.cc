#include "engine/pipeline/layer_partition.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "model/stages.h"

namespace switchyard {
namespace {

// The flag or variable that set the layers of the stages.
std::string PartitionName(const std::string& text) {
  return !text.empty() && text == LayerPartitionOfEnvironment()
             ? "SGLANG_PP_LAYER_PARTITION (or --pp-layer-partition)"
             : "--pp-layer-partition";
}

}  // namespace

std::vector<int> ParseLayerPartition(const std::string& text) {
  std::vector<int> sizes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view word = rest.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    int size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    if (error != std::errc() || end != word.data() + word.size() || comma + 1 == rest.size())
      throw Invalid("{} {}: want numbers of layers, such as 12,12,13", PartitionName(text), text);
    sizes.push_back(size);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return sizes;
}

std::string LayerPartitionOfEnvironment() {
  const char* sizes = std::getenv("SGLANG_PP_LAYER_PARTITION");
  return sizes == nullptr ? "" : sizes;
}

std::vector<schedule::LayerRange> StagesOf(const EngineConfig& config, const ModelConfig& model) {
  return SplitLayers(model, config.mesh.pp, ParseLayerPartition(config.pp_layer_partition),
                     PartitionName(config.pp_layer_partition));
}

EnginePlan StagePlanOf(const EngineConfig& config, const EnginePlan& plan, int stage) {
  if (config.mesh.pp == 1) return plan;
  EnginePlan own = plan;
  own.model = StageConfigOf(plan.model, plan.stages[stage]);
  const Mesh mesh(config.mesh, 0);
  size_t token = KvStorage::BytesPerToken(own.model, mesh, plan.kv_dtype);
  if (!own.model.has_head) own.draft.reset();  // the last stage drafts
  if (own.draft) {
    own.model.lends_embedding = own.draft->eagle && !own.draft->eagle->own_embedding;
    token += KvStorage::BytesPerToken(*own.draft, mesh, plan.kv_dtype);
  }
  own.kv_bytes_per_rank = static_cast<size_t>(plan.num_pages * config.page_size) * token;
  return own;
}

}  // namespace switchyard
