#include "model/complete_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "eplb/init_location.h"
#include "model/families/family.h"
#include "model/micro_batches.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

// Whether the routed experts quantize their input rows to FP8 in groups of 128.
bool UsesFp8GroupActivations(const ModelConfig& config) {
  const LinearSchemes schemes(config.quantization);
  const TensorNames names = NamesOf(config);
  const auto layer = std::ranges::find_if(config.layers, &LayerConfig::moe);
  const auto index = config.first_moe_layer >= 0
                         ? config.first_moe_layer
                         : config.first_layer + (layer - config.layers.begin());
  const std::string experts = LayerPrefix(names, index) + names.moe + ".experts.";
  const std::string one = names.interleaved_experts ? "gate_up_proj" : "0." + names.expert_gate;
  return schemes.Of(experts + one).activation == ActivationFormat::kFp8Group;
}

}  // namespace

ModelOptions CompleteOptions(const ModelConfig& config, ModelOptions options,
                             const MeshShape& mesh) {
  options.two_batch_overlap = options.two_batch_overlap && config.has_moe();
  options.moe.single_batch_overlap = options.moe.single_batch_overlap && config.has_moe() &&
                                     CombinesInParts(options.moe, options.backends.get());
  options.moe.passes = options.two_batch_overlap ? 2 : 1;
  options.max_pass_tokens = options.two_batch_overlap
                                ? MaxMicroBatchRows(options.max_tokens, options.tbo_threshold)
                                : options.max_tokens;
  options.moe.row_dtype = options.dtype;
  options.load.replicated_shared_expert = ScattersTokens(options.moe, mesh);
  if (options.context_length == 0) options.context_length = config.max_position;
  if (!config.has_moe()) return options;
  // A GPU in exact mode sends no FP8 rows (CudaMoeBackend), so ranks on CPUs beside it must not
  // expect them.
  const bool exact_gpu = options.moe.host_experts && options.dtype == DType::kF32;
  options.moe.fp8_group_activations = UsesFp8GroupActivations(config) && !exact_gpu;
  std::vector<ExpertPlacement> placements = LoadPlacements(
      {.location = options.moe.init_expert_location,
       .num_layers = config.whole_layers > 0 ? config.whole_layers : config.num_layers(),
       .num_logical = config.moe->router.num_experts,
       .redundant = options.moe.num_redundant_experts,
       .algorithm = options.eplb_algorithm,
       .topology = {.ranks = mesh.ep,
                    .nodes = options.moe.nodes,
                    .groups = config.moe->router.num_groups,
                    .slots = mesh.expert_slots,
                    .costs = options.rank_costs}});
  if (config.whole_layers > 0) {  // of this pipeline stage
    const auto first = placements.begin() + config.first_layer;
    placements = {first, first + config.num_layers()};
  }
  options.load.placements = std::move(placements);
  return options;
}

LoadOptions PlacedFormats(const ModelOptions& options) {
  LoadOptions load = options.load;
  if (!options.gpu) return load;
  load.gpu_plain_dtype = options.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  load.packs_experts = options.gpu->packs_experts && options.dtype != DType::kF32;
  return load;
}

LoadOptions CompletePlacedLoad(const ModelConfig& config, const ModelOptions& options,
                               const MeshShape& shape) {
  return PlacedFormats(CompleteOptions(config, options, shape));
}

}  // namespace switchyard
