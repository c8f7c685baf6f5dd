// What an engine is started with, after flags and checkpoint were read. Plain value; every rank
// gets the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/mesh.h"
#include "core/dtype.h"
#include "model/model.h"

namespace switchyard {

// Defaults are what a user gets who says nothing. Names follow SGLang's flags.
struct EngineConfig {
  std::filesystem::path model_path;
  std::string model_override_args;  // --json-model-override-args: replaces keys of config.json
  std::string dtype = "auto";       // auto | float32 | bfloat16 | float16 (--dtype)
  std::string kv_cache_dtype =
      "auto";  // auto: float32 | float32 | bfloat16 | float16 (--kv-cache-dtype)
  std::string load_format = "auto";  // --load-format
  MeshShape mesh;                    // --tp-size, --ep-size
  MoeOptions moe;  // --moe-a2a-backend, --deepep-mode, … (row_dtype is set from dtype)
  int64_t context_length = 0;    // --context-length; 0: the model's
  int64_t max_total_tokens = 0;  // --max-total-tokens: cache capacity; 0: from memory
  double mem_fraction_static =
      0.85;  // --mem-fraction-static: of this host's memory, for weights and cache of all ranks
  int32_t page_size = 16;            // --page-size
  int32_t max_running_requests = 0;  // --max-running-requests; 0: 256, bounded by the cache
  int32_t max_queued_requests = 0;   // --max-queued-requests; 0: no limit (checked by the front)
  int32_t chunked_prefill_size =
      2048;  // --chunked-prefill-size: most prompt tokens of one step; −1: no chunking
  bool disable_radix_cache = false;   // --disable-radix-cache
  int32_t threads_per_rank = 0;       // --cpu-threads-per-rank; 0: cores / ranks
  std::string cpu_isa = "auto";       // --cpu-isa
  double dist_timeout_seconds = 300;  // --dist-timeout
  uint64_t random_seed = 0;  // --random-seed: of requests without a seed, and of dummy weights
  std::string log_level = "info";
  bool check_batches = false;  // --check-batches: ranks compare every batch before they run it
};

std::string EncodeConfig(const EngineConfig& config);
EngineConfig DecodeConfig(std::string_view bytes);

// Fills in what follows from config.json and the machine: dtype, context length, page count,
// threads. Error kInvalid names the flags that do not fit; Error kResource says how much memory is
// needed and available, before loading.
struct EnginePlan {
  ModelConfig model;
  DType dtype = DType::kBF16;    // of token rows in flight
  DType kv_dtype = DType::kF32;  // of the cache
  int64_t context_length = 0;
  int64_t num_pages = 0;
  int32_t max_running_requests = 0;
  int64_t max_batch_tokens = 0;  // most rows of one pass
  int32_t threads_per_rank = 1;
  size_t weight_bytes_per_rank = 0, kv_bytes_per_rank = 0, symmetric_bytes_per_rank = 0;
};
EnginePlan MakePlan(const EngineConfig& config);

// What Model is built with, the same on every rank and where memory is planned.
ModelOptions MakeModelOptions(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
