// The cases of the exchange benchmark: backend, layout and sizes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "moe/cpu/cpu_backend.h"

namespace switchyard::bench {

constexpr int64_t kHidden = 2048;
constexpr int64_t kIntermediate = 64;
constexpr int kExperts = 64;

// One case. Rows are [tokens, kHidden] on each rank.
struct ExchangeCase {
  std::string a2a, mode;
  int ranks = 2;
  int64_t tokens = 128;  // of each rank
  int top_k = 8;
  bool fp8 = false;
  bool processes = false;
  bool pass = false;
  std::string combine_rows = "slot";
  std::shared_ptr<const MoeBackends> backends;

  // "deepep normal by rank, ranks 2 threads bf16 top-8 tokens 128"
  std::string Describe() const {
    return fmt::format("{}{}{}, ranks {} {} {} top-{} tokens {}", a2a,
                       mode.empty() ? "" : " " + mode, combine_rows == "slot" ? "" : " by rank",
                       ranks, processes ? "processes" : "threads", fp8 ? "fp8" : "bf16", top_k,
                       tokens);
  }
  MoeOptions Options() const {
    return {.a2a_backend = a2a,
            .deepep_mode = mode,
            .max_dispatch_tokens_per_rank = static_cast<int>(tokens),
            .dispatcher_output_dtype = fp8 ? "fp8" : "bf16",
            .combine_rows = combine_rows,
            .row_dtype = DType::kBF16};
  }
  MoeShape Shape() const {
    return {.hidden = kHidden,
            .intermediate = kIntermediate,
            .num_experts = kExperts,
            .top_k = top_k,
            .max_tokens = tokens};
  }
  // Each rank has its own batch.
  MeshShape Mesh() const { return {.tp = ranks, .ep = ranks, .dp = ranks}; }
  size_t CopyBytes() const { return tokens * top_k * kHidden * sizeof(uint16_t); }
};

}  // namespace switchyard::bench
