// Options of a rank's model.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "eplb/types.h"
#include "model/weights.h"
#include "moe/options.h"
#include "schedule/operation.h"

namespace switchyard {

class MessageLane;
class Model;
class PhaseTimes;
class ReplicaChooser;
class RoutingObserver;
class DeviceStore;
namespace profile {
class Profiler;
}  // namespace profile

// The GPU of a rank and its settings (--device cuda).
struct GpuOptions {
  int index = 0;                               // index among the GPUs of this host
  bool custom_all_reduce = true;               // --disable-custom-all-reduce
  bool graphs = true;                          // --disable-cuda-graph
  bool packs_experts = true;                   // the GPU has kernels for packed 4-bit experts
  int64_t graph_max_tokens = 0;                // --cuda-graph-max-bs: decode tokens of a group
  int64_t max_sequences = 0;                   // maximum sequences of one pass
  int64_t max_branch = 0;                      // CudaDeviceOptions::max_branch
  int64_t max_page_tables = 0;                 // CudaDeviceOptions::max_page_tables
  std::chrono::milliseconds timeout{300'000};  // limit for kernels that wait for a peer
  int ranks_per_host = 0;                      // of a stage; 0: all ranks are on one host
  // With stages: passes whose hidden rows may wait at the next stage. 0: the model is whole.
  int stage_passes = 1;
};

// The records that ModelOptions::observer needs from the layers. The memory plan of a GPU uses
// this, because it is made before the observer exists.
enum class Observed : uint8_t { kNothing, kCounts, kTokens };

struct ModelOptions {
  // The weights of an earlier model with equal options (Model::weights), on a CPU. Null: they are
  // loaded.
  std::shared_ptr<const ModelWeights> weights;
  // On a GPU: the memory of the weights. If it is filled, no weights are read. Outlives the model.
  // Null: the model allocates memory.
  DeviceStore* weight_store = nullptr;
  // On a GPU: the memory of the cache (Device::SetCacheStore). Outlives the model. Null: the cache
  // ends with the model.
  DeviceStore* cache_store = nullptr;
  std::function<void()> before_cache_release;  // with cache_store
  // Format of the cache and of exchanged token rows; sums are always float32.
  DType dtype = DType::kBF16;
  int64_t max_tokens = 0;      // maximum rows of one group in one batch
  int64_t context_length = 0;  // positions: sizes the RoPE table; 0: the model's maximum
  MoeOptions moe;
  std::shared_ptr<const MoeBackends> backends;  // null: those of this program
  std::optional<GpuOptions> gpu;                // none: CPU
  RoutingObserver* observer = nullptr;          // observes the MoE layers; outlives the model
  Observed observed = Observed::kNothing;
  ReplicaChooser* chooser = nullptr;      // selects replicas in the MoE layers; outlives the model
  profile::Profiler* profiler = nullptr;  // records operations, outlives the model
  // Called on the rank's thread before each operation of Model::Forward, except for operations of
  // captured passes. May call Model::AbortPass, before the same operation on every rank. Null:
  // none.
  std::function<void(uint64_t pass, int micro_batches, const schedule::Operation& operation)>
      before_operation;
  bool keeps_hidden = false;  // enables Model::hidden
  // With keeps_hidden: Model::hidden has the inputs of these layers instead, ascending. The number
  // of layers stands for the output of the last one.
  std::vector<int64_t> kept_inputs;
  // The model whose embedding and head an EAGLE head uses; outlives the model. Has the same mesh.
  const Model* target = nullptr;
  // Of a pipeline stage: connects it to the previous stage and to the next one. On CPUs, each
  // message has the hidden rows of one batch, [T, residual_width] float32. On GPUs, it announces
  // rows that go from GPU to GPU, and has their number of floats. Outlives the model. Null: there
  // is one stage.
  MessageLane* stage_rows = nullptr;
  bool movable_experts = false;  // enables Model::movable_experts
  // Number of layers whose new experts are in memory at the same time; −1: all.
  int movable_layers = 1;
  // Batches run as two micro-batches that hide each other's exchanges (SplitRows).
  bool two_batch_overlap = false;
  double tbo_threshold = 0.48;
  int64_t tbo_min_tokens = 2;  // over all attention groups; smaller batches are not split
  // Maximum rows of one group in one pass: sizes activations and buffers. Derived by Model.
  int64_t max_pass_tokens = 0;
  PhaseTimes* times = nullptr;          // of the constructor; may be null
  std::string eplb_algorithm = "auto";  // planner for a recorded --init-expert-location
  std::vector<RankCost> rank_costs;     // of the EP ranks, for the same planner; empty: equal
  int32_t page_size = 16;               // page size of the cache passed to Forward
  LoadOptions load;
};

}  // namespace switchyard
