// What the MoE layers of a model are started with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/device/communicator.h"
#include "core/dtype.h"
#include "core/parallel.h"

namespace switchyard {

struct MoeBackends;
class MoeRuntime;

// The flags, the same for all layers of a model. Names follow SGLang's.
struct MoeOptions {
  std::string a2a_backend = "none";     // --moe-a2a-backend
  std::string deepep_mode = "auto";     // --deepep-mode: normal | low_latency | auto
  std::string runner_backend = "auto";  // --moe-runner-backend
  // --speculative-moe-a2a-backend, --speculative-moe-runner-backend: of the draft model's layers;
  // empty: as the model's.
  std::string speculative_a2a_backend, speculative_runner_backend;

  // Capacity of low_latency (--num-max-dispatch-tokens-per-rank).
  int max_dispatch_tokens_per_rank = 128;
  // What rows travel as, on the way to the experts (--deepep-dispatcher-output-dtype): bf16 the
  // model's dtype, fp8 with a scale for 128 elements; auto: fp8 where the experts quantize their
  // input so.
  std::string dispatcher_output_dtype = "auto";
  // Exchanges of normal mode carry at most so many tokens of a rank
  // (--deepep-normal-long-seq-per-round-tokens), longer batches go in rounds, at most
  // --deepep-normal-long-seq-round of them (0: as many as it takes).
  int64_t long_seq_per_round_tokens = 8192;
  int long_seq_rounds = 0;

  // What returns to a token's rank (--moe-combine-rows): slot, an output for each of its experts,
  // whose sum is the same in every bit wherever experts sit; or rank, one row from each rank with
  // what its experts add up to: fewer bytes, but the last bits depend on the placement.
  std::string combine_rows = "slot";

  // How long a rank may stay silent in one stage before mooncake goes on without it
  // (--elastic-ep-timeout).
  double elastic_timeout_seconds = 10.0;

  bool waterfill = false;                        // --enable-deepep-waterfill
  int num_redundant_experts = 0;                 // --ep-num-redundant-experts
  std::string init_expert_location = "trivial";  // --init-expert-location

  // Hosts that hold as many consecutive EP ranks each; 1 too where they hold unequal parts. Follows
  // from how ranks were started.
  int nodes = 1;
  DType row_dtype = DType::kF32;  // of token rows in flight: the model's dtype
  // Whether experts quantize their input rows to FP8 in groups of 128; decides `auto` above.
  bool fp8_group_activations = false;
};

struct MoeShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of a routed expert, whole (before MoE-TP)
  int num_experts = 0;       // logical
  int top_k = 0;
  int64_t max_tokens = 0;  // most rows of one attention group in one pass
  bool has_shared = false;
};

// Those of a draft model's layers: the speculative names where they are given.
MoeOptions ForDraftModel(MoeOptions options);

// Whether ranks route, send and combine tokens of their own; otherwise every rank has all tokens
// and computes a part of each one's sum.
bool ScattersTokens(const MoeOptions& options, const MeshShape& mesh);

// What all layers of one rank share: groups, threads, backends with their symmetric buffers, and
// scratch. Built once per model on every rank in the same order (it allocates symmetrically);
// layers point to it. `backends`: null for those of this program.
std::shared_ptr<MoeRuntime> MakeMoeRuntime(const MoeOptions& options, const MoeShape& shape,
                                           RankComm& comm, ThreadPool& pool,
                                           std::shared_ptr<const MoeBackends> backends = nullptr);
// Bytes of symmetric memory the runtime will allocate on each rank, to size the arena before ranks
// start.
size_t MoeSymmetricBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                         const MoeBackends* backends = nullptr);

}  // namespace switchyard
