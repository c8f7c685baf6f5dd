#include "model/weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "model/families/family.h"
#include "model/weights/draft_vocabulary.h"
#include "model/weights/parts.h"
#include "model/weights/source.h"
#include "model/weights/stored_weights.h"

namespace switchyard {
namespace {

// Layers past the last one are multi-token prediction layers, in checkpoints of DeepSeek and GLM.
bool IsExtraLayer(std::string_view name, const std::string& layers, int64_t num_layers) {
  if (!name.starts_with(layers)) return false;
  name.remove_prefix(layers.size());
  int64_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  return error == std::errc() && index >= num_layers;
}

void LogUnused(const Checkpoint& checkpoint, const ModelConfig& config,
               const std::set<std::string, std::less<>>& used) {
  const TensorNames names = NamesOf(config);
  if (config.is_mtp || config.eagle) return;  // the target's tensors, or d2t and t2d
  size_t extra = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
    if (IsExtraLayer(name, names.layers, config.num_layers() / names.blocks) ||
        (!names.mtp.empty() && name.starts_with(names.mtp))) {
      ++extra;
    } else {
      LOG_DEBUG("{}: tensor \"{}\" is not used", tensor.file, name);
    }
  }
  if (extra != 0) {
    LOG_DEBUG(
        "{}: {} tensors belong to multi-token prediction layers, which serving loads only with "
        "--speculative-algorithm NEXTN",
        checkpoint.dir().string(), extra);
  }
}

// The outputs of a model with sparse attention would be wrong with attention to all keys.
void RefuseUnusedIndexers(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.attention.index_topk > 0 || config.is_mtp || config.eagle) return;
  const TensorNames names = NamesOf(config);
  for (const auto& [name, tensor] : checkpoint.tensors())
    if (name.starts_with(names.layers) && name.find(".indexer.") != std::string::npos &&
        !IsExtraLayer(name, names.layers, config.num_layers() / names.blocks))
      throw Invalid(
          "{}: tensor \"{}\" belongs to an indexer of sparse attention, but config.json describes "
          "none (index_topk of DeepseekV32ForCausalLM or GlmMoeDsaForCausalLM)",
          tensor.file, name);
}

}  // namespace

ModelWeights LoadWeights(const std::filesystem::path& dir, const ModelConfig& config,
                         const Mesh& mesh, const LoadOptions& options) {
  const auto load = [&](WeightSource& source) {
    ModelWeights weights = BuildWeights(config, mesh, options, source);
    if (options.read_data) source.Finish(options.progress);
    return weights;
  };
  if (options.load_format == "dummy") {
    return load(*MakeDummySource(config, options.dummy_seed, options.threads));
  }
  if (options.load_format != "auto" && options.load_format != "safetensors") {
    throw Invalid("--load-format {} is unknown; want auto, safetensors or dummy",
                  options.load_format);
  }
  const StoredWeights stored(dir);
  return load(
      *stored.MakeSource(config, {.check_nan_scales = options.check_nan_scales && options.read_data,
                                  .threads = options.threads}));
}

size_t CheckCheckpoint(const std::filesystem::path& dir, const ModelConfig& config) {
  const StoredWeights stored(dir);
  std::set<std::string, std::less<>> used;
  const auto source = stored.MakeSource(config, {.read_data = false, .found = &used});
  const ModelWeights weights = BuildWeights(config, Mesh(), {}, *source);
  source->Finish({});
  LoadDraftVocabulary(dir, config);
  if (stored.checkpoint() != nullptr) RefuseUnusedIndexers(*stored.checkpoint(), config);
  if (stored.checkpoint() != nullptr) LogUnused(*stored.checkpoint(), config, used);
  if (!config.unknown_keys.empty() && !config.is_mtp)
    LOG_INFO("{}: config.json has keys without a known effect, which are ignored: {}", dir.string(),
             Joined(config.unknown_keys, ", "));
  return weights.bytes_mapped;
}

void CheckReducedHead(const std::filesystem::path& dir, const ModelConfig& config) {
  const StoredWeights stored(dir);
  RequestHead(config, *stored.MakeSource(config, {.read_data = false, .log = false}));
}

size_t WeightBytesPerRank(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options) {
  return BuildWeights(config, mesh, options,
                      *MakeCountingSource(config, options.gpu_plain_dtype, options.packs_experts))
      .bytes_mapped;
}

size_t ExpertBytes(const ModelConfig& config, const Mesh& mesh, const LoadOptions& options) {
  const auto source = MakeCountingSource(config, options.gpu_plain_dtype, options.packs_experts);
  const TensorNames names = NamesOf(config);
  Parts parts({config, mesh, names}, *source);
  const auto layer = std::ranges::find_if(config.layers, &LayerConfig::moe);
  CHECK(layer != config.layers.end());
  std::vector<Tensor> owned;
  const int32_t expert = 0;
  const auto number = config.first_layer + (layer - config.layers.begin());
  BuildExperts(parts, LayerPrefix(names, number), {&expert, 1}, &owned);
  return static_cast<size_t>(std::llround(parts.bytes()));
}

}  // namespace switchyard
