// Configuration of an engine, after flags and checkpoint are read. It is a plain value and equal on
// every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "core/dtype.h"
#include "engine/speculative/options.h"
#include "eplb/manager_options.h"
#include "eplb/recorder_options.h"
#include "kernels/recurrent.h"
#include "model/model.h"
#include "schedule/serve.h"

namespace switchyard {

// Member initializers are the flags' defaults. Names follow SGLang's flags.
struct EngineConfig {
  std::filesystem::path model_path;
  std::string model_override_args;  // --json-model-override-args: replaces keys of config.json
  // --device: auto (cuda if a GPU is found) | cpu | cuda | cuda,cpu (ranks with experts only, as
  // of MeshShape::expert_ranks, on CPUs and the others on GPUs)
  std::string device = "auto";
  bool host_experts() const { return device == "cuda,cpu"; }
  // Rank r of a host computes on GPU base_gpu_id + r · gpu_id_step (--base-gpu-id, --gpu-id-step).
  // Step 0: all ranks on one GPU, for tests.
  int32_t base_gpu_id = 0, gpu_id_step = 1;
  bool disable_custom_all_reduce = false;  // --disable-custom-all-reduce
  bool disable_cuda_graph = false;         // --disable-cuda-graph
  int32_t cuda_graph_max_bs = 0;  // --cuda-graph-max-bs; 0: --max-running-requests, at most 256
  std::string dtype = "auto";     // --dtype: auto | float32 | bfloat16 | float16
  // --kv-cache-dtype: auto | float32 | bfloat16 | float16 | fp8_e4m3, and on CPUs also int8. auto:
  // bfloat16 if activation rows are rounded to bfloat16, else float32.
  std::string kv_cache_dtype = "auto";
  QuantizationFlags quantization;    // --quantization, --quantize-activations, --cpu-weight-layout
  PoolingFlags pooling;              // --is-embedding, --pooler-config
  std::string load_format = "auto";  // --load-format
  // --tp-size, --ep-size, --dp-size (with --enable-dp-attention), --moe-dense-tp-size, --pp-size,
  // --expert-ranks, --expert-slots
  MeshShape mesh;
  // --elastic-ep-backend: none, or mooncake: while a lost rank loads, the others serve without it
  std::string elastic_ep_backend = "none";
  // --spare-ranks: processes that have loaded what all ranks need, and take the places of ranks
  int32_t spare_ranks = 0;
  std::string pp_layer_partition;  // --pp-layer-partition: "12,12,13"; empty: SplitLayers decides
  // --pp-max-micro-batch-size: maximum number of decoding requests in one pass, over all attention
  // groups; 0: an equal part of the decoding requests
  int32_t pp_max_micro_batch_size = 0;
  int32_t pp_async_batch_depth = 0;          // --pp-async-batch-depth: see PassesInFlight
  bool dynamic_chunking = false;             // --enable-dynamic-chunking: see PrefillBudget
  std::string load_balance_method = "auto";  // --load-balance-method: see DpController
  MoeOptions moe;  // --moe-a2a-backend, --deepep-mode, … (row_dtype is set from dtype)
  SpeculativeOptions speculative;         // --speculative-algorithm, …
  bool disable_jump_forward = false;      // --disable-jump-forward
  bool disable_overlap_schedule = false;  // --disable-overlap-schedule
  bool two_batch_overlap = false;         // --enable-two-batch-overlap
  double tbo_threshold = 0.48;            // --tbo-token-distribution-threshold
  int32_t tbo_min_tokens = -1;            // --tbo-min-tokens; −1: MakePlan sets it
  // The backends that the MoE flags select from; null: the built-in ones. Not serialized, because
  // each rank process has its own.
  std::shared_ptr<const MoeBackends> backends;
  EplbOptions eplb;                // --enable-eplb, …, --ep-dispatch-algorithm
  ExpertRecorderOptions recorder;  // --expert-distribution-recorder-mode, …
  int64_t context_length = 0;      // --context-length; 0: the model's maximum
  // --max-total-tokens: cache capacity of each attention group; 0: derived from the memory
  int64_t max_total_tokens = 0;
  // --mem-fraction-static: the fraction of memory that weights, cache and buffers may take. On CPUs
  // this is a fraction of the host's memory for all its ranks; on GPUs, of each GPU's memory.
  double mem_fraction_static = 0.85;
  int32_t page_size = 16;  // --page-size
  // --max-running-requests of all attention groups; 0: 256, bounded by the cache
  int32_t max_running_requests = 0;
  // --max-queued-requests, enforced by the front; 0: no limit; −1: 16 times the maximum of running
  // requests
  int32_t max_queued_requests = -1;
  // --chunked-prefill-size: maximum prompt tokens of one step over all attention groups; −1: no
  // chunking; 0: 2048 on CPUs, the result of DefaultGpuChunk on GPUs
  int32_t chunked_prefill_size = 0;
  // --max-prefill-tokens: a second limit on the prompt tokens of one step; 0: none
  int64_t max_prefill_tokens = 0;
  std::string schedule_policy = "fcfs";    // --schedule-policy: see ParseSchedulePolicy
  double schedule_conservativeness = 1.0;  // --schedule-conservativeness: see NewTokenEstimate
  // --target-step-ms: target time of a step with prompt and decode rows; −1: derived (PrefillPace),
  // 0: no target
  double target_step_ms = -1;
  bool priority_scheduling = false;   // --enable-priority-scheduling
  int32_t preemption_threshold = 10;  // --priority-scheduling-preemption-threshold
  int32_t decode_log_interval = 0;    // --decode-log-interval; 0: no log lines
  bool disable_radix_cache = false;   // --disable-radix-cache
  int32_t threads_per_rank = 0;       // --cpu-threads-per-rank; 0: this host's CPUs / ranks
  std::string cpu_bind = "auto";      // --cpu-bind: auto | none | CPUs of each rank of this host
  std::string cpu_isa = "auto";       // --cpu-isa
  double dist_timeout_seconds = 300;  // --dist-timeout
  double watchdog_timeout_seconds = 300;  // --watchdog-timeout
  uint64_t random_seed = 0;  // --random-seed: seed of dummy weights and of requests without a seed
  // --disaggregation-mode: null | prefill (computes prompts, KvRole::kExport) | decode (continues
  // them, KvRole::kImport)
  std::string disaggregation_mode = "null";
  std::string log_level = "info";
  bool check_batches = false;  // --check-batches: ranks compare every batch before they run it

  bool disaggregated() const { return disaggregation_mode != "null"; }
};

std::string EncodeConfig(const EngineConfig& config);
EngineConfig DecodeConfig(std::string_view bytes);

// Reads config.json and applies the flags. `--quantize-activations auto` selects bfloat16 rows if
// this CPU has bfloat16 multiply instructions (for FP8 weights if HasFp8Products), and int8 rows
// for 4-bit weights. With GPUs, MakePlanOn applies these rows to ranks on CPUs beside them only.
// `--cpu-weight-layout auto` keeps the stored layout for elastic ranks and spares, which take over
// mapped weights within milliseconds.
ModelConfig ReadModelConfig(const EngineConfig& config);

// Replicas and placement of the draft model's experts. Not the default only in epochs without some
// ranks (LayoutOfActive). Plain value.
struct DraftExperts {
  int redundant = 0;                 // as --ep-num-redundant-experts
  std::string location = "trivial";  // as --init-expert-location
};

// The sizes that follow from config.json and the machine: dtype, context length, page count,
// threads. Error kInvalid names invalid flags. Error kResource reports the needed and the available
// memory before loading starts. Pages, requests and batches are those of one attention group.
struct EnginePlan {
  ModelConfig model;
  // Configuration of the draft model of speculative decoding, if any.
  std::optional<ModelConfig> draft;
  DraftExperts draft_experts;
  DraftLimits drafts;
  int32_t max_forced = 0;      // RankEngine::Options::max_forced
  bool cuda = false;           // ranks with attention compute on GPUs
  bool host_experts = false;   // ranks with experts only compute on CPUs, the others on GPUs
  bool packs_experts = false;  // GPUs keep 4-bit experts packed
  // Beside GPUs: int8_group_rows and fp8_bfloat16_rows of ranks on CPUs. Those of `model` are
  // false.
  bool host_int8_rows = false, host_bfloat16_rows = false;
  int32_t ranks_of_host = 1;     // ranks that share this host's memory, cores and GPUs
  DType dtype = DType::kBF16;    // format of exchanged token rows
  DType kv_dtype = DType::kF32;  // format of the cache
  int64_t context_length = 0;
  int64_t num_pages = 0;
  int32_t max_running_requests = 0;
  int64_t num_states = 0;            // RankEngine::Options::num_states
  int32_t chunked_prefill_size = 0;  // −1: no chunking
  int64_t max_batch_tokens = 0;      // maximum rows of one pass
  int32_t threads_per_rank = 1;      // used unless BindRank partitions the CPUs
  // Maxima over the pipeline stages.
  size_t weight_bytes_per_rank = 0, kv_bytes_per_rank = 0, symmetric_bytes_per_rank = 0;
  std::vector<schedule::LayerRange> stages;  // the layers of each pipeline stage

  // Whether the rank computes on a GPU.
  bool OnGpu(const MeshShape& mesh, int rank) const {
    return cuda && (!host_experts || rank < mesh.tp - mesh.expert_ranks);
  }
  // The model as `rank` loads it: beside GPUs, ranks on CPUs round rows as their products need.
  ModelConfig ModelOf(const MeshShape& mesh, int rank) const;
  // RankEngine::Options::held_states: as many requests may be held as run, so that prompts are
  // computed while the states of others are sent.
  int64_t held_states(const EngineConfig& config) const {
    return config.disaggregated() ? max_running_requests : 0;
  }
  // RankEngine::Options::state_chunk
  int32_t state_chunk() const {
    return cuda && model.has_linear() &&
                   kernels::ChunksPrompts(model.linear->rule, model.linear->key_dim)
               ? kernels::kDeltaChunk
               : 0;
  }
};

// The layers of each pipeline stage. Error kInvalid names the flag.
std::vector<schedule::LayerRange> StagesOf(const EngineConfig& config, const ModelConfig& model);
// The plan of a rank of this stage: its model is the stage's.
EnginePlan StagePlanOf(const EngineConfig& config, const EnginePlan& plan, int stage);

// Reads config.json and computes the sizes of the engine from flags and the memory of this host.
// Throws Error kInvalid for invalid or unsupported flags, and kResource if the memory is too small.
//
// `ranks_of_host`: the number of ranks that share this host's memory and cores; 0: all ranks.
EnginePlan MakePlan(const EngineConfig& config, int ranks_of_host = 0);

// Default of --chunked-prefill-size on GPUs, over all attention groups. A larger chunk amortizes
// weight reads, but takes memory from the cache and delays decoding sequences. `bytes_of` returns
// the bytes that activations and exchange of a rank need for a chunk size. `most_bytes` is a sixth
// of the GPU memory that weights leave free. Returns the larger of 8192 and 4096 that needs at most
// `most_bytes`, or 2048 if both need more.
int32_t DefaultGpuChunk(double most_bytes, const std::function<double(int32_t)>& bytes_of);

// --moe-a2a-backend ascend_fuseep and megamoe are operators of devices that this program does not
// support. Replaces these names by "fused" if `backends` has that operator for the device, else by
// "deepep", and logs the replacement. Other names are unchanged.
void ReplaceForeignA2a(EngineConfig* config);

// Options of Model. Memory planning uses the same options.
ModelOptions MakeModelOptions(const EngineConfig& config, const EnginePlan& plan, int rank = 0);

}  // namespace switchyard
