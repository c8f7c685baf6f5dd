// Configuration of a model's MoE layers.
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

// The flags, the same for all layers of a model. Names follow SGLang's.
struct MoeOptions {
  std::string a2a_backend = "none";     // --moe-a2a-backend
  std::string deepep_mode = "auto";     // --deepep-mode: normal | low_latency | auto
  std::string runner_backend = "auto";  // --moe-runner-backend
  // For the draft model's layers: --speculative-moe-a2a-backend, --speculative-moe-runner-backend.
  // If empty, the draft model uses the backends of the model.
  std::string speculative_a2a_backend, speculative_runner_backend;

  // Maximum tokens of a rank in one low-latency exchange (--num-max-dispatch-tokens-per-rank).
  int max_dispatch_tokens_per_rank = 128;
  // Format of dispatched rows (--deepep-dispatcher-output-dtype). bf16: the model's dtype; fp8: one
  // scale per 128 elements; auto: fp8 if the experts quantize their input in the same way
  // (fp8_group_activations).
  std::string dispatcher_output_dtype = "auto";
  // Maximum tokens of a rank in one normal-mode exchange
  // (--deepep-normal-long-seq-per-round-tokens). Longer batches take several rounds, at most
  // --deepep-normal-long-seq-round (0: no limit).
  int64_t long_seq_per_round_tokens = 8192;
  int long_seq_rounds = 0;
  // HCCL_BUFFSIZE: maximum MiB of one normal-mode exchange by SGLang's formula; 0: no limit.
  int hccl_buffer_mib = 0;
  // DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ: one combine in each round of dispatch. Otherwise one
  // combine covers all rounds of a pass, if the backend supports it and hccl_buffer_mib suffices
  // (dispatchers/rounds.h).
  bool combine_long_seq = false;

  // Rows that combine returns to a token's rank (--moe-combine-rows). slot: one output per expert;
  // the sum is bit-identical for any placement. rank: one partial sum per rank. This needs fewer
  // bytes, but the last bits depend on the placement.
  std::string combine_rows = "slot";

  // Timeout in seconds (--elastic-ep-timeout). If a rank makes no progress in a stage for this
  // time, mooncake continues without it.
  double elastic_timeout_seconds = 10.0;

  bool waterfill = false;                        // --enable-deepep-waterfill
  int num_redundant_experts = 0;                 // --ep-num-redundant-experts
  std::string init_expert_location = "trivial";  // --init-expert-location

  // --enable-single-batch-overlap: combine returns the outputs of some experts while the down
  // projection of others is computed, if the exchange supports it (CombinesInParts).
  bool single_batch_overlap = false;
  // Number of passes in flight; 2 for two-batch overlap. Each pass has its own exchange buffers.
  int passes = 1;
  // Number of hosts if each has the same number of consecutive EP ranks, otherwise 1. Derived from
  // the launch configuration.
  int nodes = 1;
  // Whether ranks with experts only (MeshShape::expert_ranks) compute on CPUs and the other ranks
  // on GPUs. Derived from --device. Rows then go through the shared arena of the ranks.
  bool host_experts = false;
  // --stream-experts: auto | off | a number of tokens (moe/stream_experts.h).
  std::string stream_experts = "off";
  // With host_experts: passes with prompts and at least this number of tokens stream experts; 0:
  // none. Derived from stream_experts.
  int64_t stream_tokens = 0;
  // Type of dispatched and combined rows: the model's dtype.
  DType row_dtype = DType::kF32;
  // Whether experts quantize their input rows to FP8 in groups of 128. Resolves
  // dispatcher_output_dtype `auto`.
  bool fp8_group_activations = false;
};

struct MoeShape {
  int64_t hidden = 0;
  int64_t router_width = 0;  // MoeLayerConfig::router_width
  int64_t intermediate = 0;  // width of a routed expert before MoE-TP
  int num_experts = 0;       // logical experts
  int top_k = 0;
  int64_t max_tokens = 0;  // maximum rows of one attention group in one pass
  bool has_shared = false;
  bool scales_input = false;  // RouterConfig::scales_input
  int zero_experts = 0;       // RouterConfig::zero_experts
  bool by_token = false;      // whether a layer has RouterConfig::by_token

  int num_logits() const { return num_experts + zero_experts; }
  // The largest router_width of a layer.
  int64_t widest_router_row() const { return by_token ? hidden + 1 : router_width; }
};

// Returns the options of a draft model's layers: speculative_* replace the model's backends where
// they are set.
MoeOptions ForDraftModel(MoeOptions options);

// Whether each rank routes, dispatches and combines its own tokens. If not, every rank has all
// tokens and computes a partial sum for each token.
bool ScattersTokens(const MoeOptions& options, const MeshShape& mesh);

// Whether the selected exchange can return outputs in parts, which single-batch overlap requires.
// `backends`: null for the built-in ones.
bool CombinesInParts(const MoeOptions& options, const MoeBackends* backends = nullptr);

// Bytes of symmetric memory that the backend of a CPU rank allocates. Determines the size of the
// arena before ranks start.
size_t MoeSymmetricBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                         const MoeBackends* backends = nullptr);

}  // namespace switchyard
