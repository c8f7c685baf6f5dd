// Builds a decoder over a fixture, so that a test can run single operations of its passes.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eplb/init_location.h"
#include "model/decoder.h"
#include "model/rank_device.h"
#include "model/rope.h"
#include "model/test_layouts.h"
#include "model/weights/placing.h"
#include "model/weights/routers.h"

namespace switchyard {

// The options of a model that may have two passes in flight, as Model completes them.
inline ModelOptions TwoPassOptions(const ModelConfig& config, const Case& c) {
  ModelOptions options{.dtype = c.dtype, .max_tokens = 64};
  options.context_length = config.max_position;
  options.max_pass_tokens = options.max_tokens;
  options.moe.a2a_backend = c.backend;
  options.moe.deepep_mode = c.mode;
  options.moe.num_redundant_experts = c.redundant;
  options.moe.passes = 2;
  options.moe.row_dtype = c.dtype;
  const MeshShape mesh{.tp = c.tp, .ep = c.ep, .dp = c.dp, .dense_tp = c.dense_tp};
  options.load.replicated_shared_expert = ScattersTokens(options.moe, mesh);
  options.load.placements = LoadPlacements({.num_layers = config.num_layers(),
                                            .num_logical = config.moe->router.num_experts,
                                            .redundant = c.redundant,
                                            .topology = {.ranks = c.ep}});
  return options;
}

// One rank with two passes. Its members are built as Model builds them.
class TwoPasses {
 public:
  TwoPasses(const Case& c, const ModelConfig& model, const ModelOptions& options, RankComm& comm,
            ThreadPool& pool)
      : config(model),
        rank_device(MakeRankDevice(config, options, comm, pool)),
        device(rank_device->device()),
        weights(LoadWeights(Fixture(c.fixture), config, comm.mesh, options.load)),
        cos_sin(device.Place(BuildCosSin(config.rope, options.context_length))),
        context{
            config,  comm.mesh,
            cos_sin, rank_device->groups(),
            device,  PlaceTable(device, BuildQueryScale(config.attention, options.context_length))},
        moe(config.layers.size()),
        decoder(context, weights, moe, [] {}),
        list(schedule::Plan(ServeShapeOf(config, options.moe, /*two_batches=*/false))) {
    for (int i = 0; i < 2; ++i)
      passes.push_back(std::make_unique<Pass>(i, context, options.max_tokens,
                                              decoder.ScratchFloats(options.max_tokens)));
    FinishRouters(config, &weights);
    UploadWeights(device, weights);
    const auto backend = rank_device->MakeMoe(options, MoeShapeOf(config, options.max_tokens));
    backend->Observe(options.observer);
    backend->ChooseReplicasBy(options.chooser);
    for (size_t i = 0; i < moe.size(); ++i) {
      if (!config.layers[i].moe) continue;
      moe[i] = std::make_unique<MoeLayer>(MoeLayerConfig{.hidden = config.hidden,
                                                         .router = config.moe->router,
                                                         .activation = config.activation,
                                                         .swiglu_alpha = config.swiglu_alpha,
                                                         .swiglu_limit = config.swiglu_limit,
                                                         .placement = options.load.placements[i],
                                                         .layer = static_cast<int>(i)},
                                          std::exchange(weights.layers[i].moe, {}), backend);
    }
    for (const auto& pass : passes) pass->moe = backend->MakeState(pass->index());
  }

  const ModelConfig& config;
  const std::unique_ptr<RankDevice> rank_device;
  kernels::Device& device;
  ModelWeights weights;
  const Tensor cos_sin;
  const LayerContext context;
  std::vector<std::unique_ptr<MoeLayer>> moe;
  const Decoder decoder;
  const std::vector<schedule::Operation> list;  // operations of one pass
  std::vector<std::unique_ptr<Pass>> passes;
};

// The operations of two passes, each running `list`: the second one begins after `before`
// operations of the first, and then has `burst` operations for each one of the first.
inline std::vector<schedule::Operation> Interleaved(const std::vector<schedule::Operation>& list,
                                                    size_t before, size_t burst) {
  std::vector<schedule::Operation> all;
  size_t next[2] = {};
  const auto add = [&](int micro_batch) {
    if (next[micro_batch] == list.size()) return;
    all.push_back(list[next[micro_batch]++]);
    all.back().micro_batch = static_cast<decltype(all.back().micro_batch)>(micro_batch);
  };
  while (all.size() < 2 * list.size()) {
    if (next[0] >= before || next[0] == list.size())
      for (size_t i = 0; i < burst; ++i) add(1);
    add(0);
  }
  return all;
}

}  // namespace switchyard
