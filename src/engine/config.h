// What an engine is started with, after flags and checkpoint were read. Plain value; every rank
// gets the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "comm/mesh.h"
#include "core/dtype.h"
#include "eplb/manager_options.h"
#include "eplb/recorder_options.h"
#include "model/model.h"

namespace switchyard {

// Defaults are what a user gets who says nothing. Names follow SGLang's flags.
struct EngineConfig {
  std::filesystem::path model_path;
  std::string model_override_args;  // --json-model-override-args: replaces keys of config.json
  // --device: auto (cuda where a GPU is found) | cpu | cuda
  std::string device = "auto";
  // Rank r of a host computes on GPU base_gpu_id + r · gpu_id_step (--base-gpu-id, --gpu-id-step;
  // step 0: all on one, for tests).
  int32_t base_gpu_id = 0, gpu_id_step = 1;
  bool disable_custom_all_reduce = false;  // --disable-custom-all-reduce
  bool disable_cuda_graph = false;         // --disable-cuda-graph
  int32_t cuda_graph_max_bs = 0;  // --cuda-graph-max-bs; 0: --max-running-requests, at most 256
  std::string dtype = "auto";     // auto | float32 | bfloat16 | float16 (--dtype)
  std::string kv_cache_dtype =
      "auto";  // auto (bfloat16 where rows are rounded to it, else float32) | float32 | bfloat16 |
               // float16 | fp8_e4m3 | int8 (CPUs) (--kv-cache-dtype)
  QuantizationFlags quantization;    // --quantization, --quantize-activations
  std::string load_format = "auto";  // --load-format
  // --tp-size, --ep-size, --dp-size with --enable-dp-attention, --moe-dense-tp-size
  MeshShape mesh;
  std::string load_balance_method = "auto";  // --load-balance-method: see DpController
  MoeOptions moe;  // --moe-a2a-backend, --deepep-mode, … (row_dtype is set from dtype)
  // What the MoE flags choose from; null: those of this program. A program's own, so it does not
  // travel to rank processes: each of them is given it anew.
  std::shared_ptr<const MoeBackends> backends;
  EplbOptions eplb;                // --enable-eplb, …, --ep-dispatch-algorithm
  ExpertRecorderOptions recorder;  // --expert-distribution-recorder-mode, …
  int64_t context_length = 0;      // --context-length; 0: the model's
  // --max-total-tokens: cache capacity of each attention group; 0: from memory
  int64_t max_total_tokens = 0;
  double mem_fraction_static = 0.85;  // --mem-fraction-static: of this host's memory, for weights
                                      // and cache of all ranks; on GPUs of each one's
  int32_t page_size = 16;             // --page-size
  // --max-running-requests of all attention groups; 0: 256, bounded by the cache
  int32_t max_running_requests = 0;
  int32_t max_queued_requests = 0;  // --max-queued-requests; 0: no limit (checked by the front)
  // --chunked-prefill-size: most prompt tokens of one step, of all attention groups; −1: no
  // chunking; 0: 2048, on GPUs as DefaultGpuChunk says
  int32_t chunked_prefill_size = 0;
  // --max-prefill-tokens: most prompt tokens of one step too; 0: no bound of its own
  int64_t max_prefill_tokens = 0;
  std::string schedule_policy = "fcfs";    // --schedule-policy: see ParseSchedulePolicy
  double schedule_conservativeness = 1.0;  // --schedule-conservativeness: see NewTokenEstimate
  int32_t decode_log_interval = 0;         // --decode-log-interval; 0: no lines
  bool disable_radix_cache = false;        // --disable-radix-cache
  int32_t threads_per_rank = 0;            // --cpu-threads-per-rank; 0: this host's CPUs / ranks
  std::string cpu_bind = "auto";      // --cpu-bind: auto | none | CPUs of each rank of this host
  std::string cpu_isa = "auto";       // --cpu-isa
  double dist_timeout_seconds = 300;  // --dist-timeout
  uint64_t random_seed = 0;  // --random-seed: of requests without a seed, and of dummy weights
  std::string log_level = "info";
  bool check_batches = false;  // --check-batches: ranks compare every batch before they run it
};

std::string EncodeConfig(const EngineConfig& config);
EngineConfig DecodeConfig(std::string_view bytes);

// config.json as the flags have it; `--quantize-activations auto` with rows in bfloat16 where this
// CPU multiplies such pairs.
ModelConfig ReadModelConfig(const EngineConfig& config);

// Fills in what follows from config.json and the machine: dtype, context length, page count,
// threads. Error kInvalid names the flags that do not fit; Error kResource says how much memory is
// needed and available, before loading. Pages, requests and batches are those of one attention
// group.
struct EnginePlan {
  ModelConfig model;
  bool cuda = false;             // ranks compute on GPUs
  bool packs_experts = false;    // which leave 4-bit experts packed
  int32_t ranks_of_host = 1;     // that share this host's memory, cores and GPUs
  DType dtype = DType::kBF16;    // of token rows in flight
  DType kv_dtype = DType::kF32;  // of the cache
  int64_t context_length = 0;
  int64_t num_pages = 0;
  int32_t max_running_requests = 0;
  int32_t chunked_prefill_size = 0;  // −1: no chunking
  int64_t max_batch_tokens = 0;      // most rows of one pass
  int32_t threads_per_rank = 1;      // where CPUs are not shared out by themselves (BindRank)
  size_t weight_bytes_per_rank = 0, kv_bytes_per_rank = 0, symmetric_bytes_per_rank = 0;
};
//
// `ranks_of_host`: how many of the ranks share this host's memory and cores; 0: all.
EnginePlan MakePlan(const EngineConfig& config, int ranks_of_host = 0);

// Most prompt tokens of one step of all attention groups, where nobody says: more of them make use
// of weights that are read, take memory from the cache, and let sequences that decode wait longer.
// Of 8192 and 4096 the largest whose `bytes_of` (activations and exchange of a rank) are
// `most_bytes` at most (a sixth of the GPU memory that weights leave free), else 2048.
int32_t DefaultGpuChunk(double most_bytes, const std::function<double(int32_t)>& bytes_of);

// --moe-a2a-backend ascend_fuseep and megamoe, which are operators of devices that this program
// does not run on, become "fused" where `backends` has it for the device, else "deepep"; a line of
// the log says so. Other names stay.
void ServeForeignA2a(EngineConfig* config);

// What Model is built with; the same where memory is planned.
ModelOptions MakeModelOptions(const EngineConfig& config, const EnginePlan& plan, int rank = 0);

}  // namespace switchyard
