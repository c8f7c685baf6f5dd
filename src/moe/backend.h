// What an MoE layer needs of a device: memory, exchange, and the kernels of its stages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "moe/layer_config.h"
#include "moe/options.h"
#include "moe/placement/placement.h"
#include "moe/router/replica_chooser.h"
#include "moe/router/routing_observer.h"
#include "moe/rows.h"
#include "moe/state.h"

namespace switchyard {

// The weights of one layer in the form that a backend reads. Only SetReplicas and Swap change it.
class MoeLayerParts {
 public:
  explicit MoeLayerParts(MoeLayerConfig layer_config) : config(std::move(layer_config)) {}
  virtual ~MoeLayerParts() = default;

  // [num_logical] the physical expert to which this rank sends the rows of each logical expert;
  // empty: the identity. Takes effect in the next pass.
  virtual void SetReplicas(std::vector<int32_t> replicas) = 0;

  // Throws Error kInvalid if the format of an expert's weights is not supported.
  virtual void CheckFormats(const kernels::ExpertWeights& expert) const = 0;
  // The `local`-th routed expert, in any form that Swap takes. Copies no weights.
  virtual OwnedExpert Held(int local) const = 0;
  // The `local`-th routed expert with its weights in host memory, to send them to another rank.
  // Requires `readable`.
  virtual OwnedExpert Expert(int local) const { return Held(local); }
  virtual bool readable() const { return true; }
  // Copies an expert that passed CheckFormats to memory from which Swap can take it quickly. May be
  // called by any thread while passes run, but by one thread at a time.
  virtual OwnedExpert Stage(OwnedExpert expert) const { return expert; }
  // Replaces all routed experts of this rank by `experts`: each is a result of Held or of Stage, or
  // in host memory. Called on the rank's thread, between two passes. Returns objects that any
  // thread may free.
  virtual std::vector<OwnedExpert> Swap(std::vector<OwnedExpert> experts) = 0;

  MoeLayerConfig config;
};

// A buffer for the rows of a batch in their dispatch format.
struct MoeInputBuffer {
  std::byte* rows = nullptr;  // contiguous; null: the layer converts the rows itself
  RowFormat format;
  Share tokens;  // the tokens of the attention group that this rank writes
};

// One per model and rank; its layers share it. MoeLayer calls the stages in order, for one state
// after the other, or interleaved for several states. A stage leaves its outputs in the state.
// Every rank calls the same stages in the same order, ranks without tokens included. Used by the
// rank's thread only. Borrows communicators and device, which outlive it.
class MoeBackend {
 public:
  MoeBackend(MoeOptions options, const MoeShape& shape, const Mesh& mesh)
      : options_(std::move(options)), shape_(shape), mesh_(mesh) {}
  virtual ~MoeBackend() = default;

  const MoeOptions& options() const { return options_; }
  const MoeShape& shape() const { return shape_; }
  // Names in profiles. They live as long as the backend.
  const char* exchange_name() const { return options_.a2a_backend.c_str(); }
  virtual const char* runner_name() const { return options_.runner_backend.c_str(); }
  const Mesh& mesh() const { return mesh_; }
  virtual const RankGroups& groups() const = 0;
  // Whether the tokens of an attention group are partitioned over its ranks. Otherwise every rank
  // has all tokens and computes a partial sum for each token.
  virtual bool scatters() const = 0;
  // Whether a batch of decode and prefill rows is split into two exchanges.
  virtual bool splits_mixed_batches() const = 0;

  // Layers built from now on report to `observer` (null: none), which outlives them. Error kInvalid
  // if it requires data that the backend does not expose.
  virtual void Observe(RoutingObserver* observer) = 0;
  // Layers built from now on select replicas with `chooser`, which outlives them (null: each rank
  // sends to one fixed replica of each expert).
  virtual void ChooseReplicasBy(ReplicaChooser* chooser) = 0;
  RoutingObserver* observer() const { return observer_; }
  ReplicaChooser* chooser() const { return chooser_; }

  // Reserves memory for moves of experts: staged experts of up to `layers` layers exist at the same
  // time (−1: of all layers). Call it after all layers are placed.
  virtual void ReserveMoves(int /*layers*/) {}
  // Returns the state of a pass. Call it after all layers are placed. `slot` is less than the
  // number of passes in flight.
  virtual std::unique_ptr<MoeState> MakeState(int slot) = 0;
  // Error kInvalid names an unsupported weight format or size.
  virtual std::unique_ptr<MoeLayerParts> Place(MoeLayerConfig config, MoeLayerWeights weights) = 0;

  // Selects the exchange of a batch whose longest lane has `longest` tokens, and its round size.
  virtual void SelectExchange(int64_t longest, MoeState& state) = 0;
  // [lane tokens, H] buffers for the tokens gathered over an MoE-TP group, and for the partial sums
  // of the group's ranks.
  virtual float* GatheredRows(MoeState& state) = 0;
  virtual float* LaneSums(MoeState& state) = 0;
  // A buffer for the rows of the next round, or none (MoeLayer::InputRows).
  virtual MoeInputBuffer InputRows(MoeState& /*state*/) { return {}; }
  virtual bool takes_input_rows() const { return false; }  // false: InputRows returns none

  // Called before the first round, as soon as `hidden` is available.
  virtual void Start(const MoeLayerParts& /*parts*/, MoeState& /*state*/) {}
  // Selects the experts of the round's tokens, and stores routed experts and router faults.
  virtual void Route(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void BeginDispatch(const MoeLayerParts& parts, MoeState& state) = 0;
  // Computes the shared expert for the own tokens, or for all tokens if each rank has a TP slice of
  // it. Reads `hidden` only. Called in the first round: on CPUs anywhere before Scatter; on GPUs
  // before EndCombine, whose sums include the shared expert's output.
  virtual void RunShared(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void EndDispatch(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void PrePermute(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void RunExperts(const MoeLayerParts& parts, MoeState& state) = 0;
  // Replaces RunExperts for an aborted batch, and leaves outputs undefined. A backend that computes
  // the experts in another stage still computes them.
  virtual void SkipExperts(const MoeLayerParts& /*parts*/, MoeState& /*state*/) {}
  virtual void PostPermute(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void BeginCombine(const MoeLayerParts& parts, MoeState& state) = 0;
  // With single-batch overlap, computes the experts' down projection, and combine sends the outputs
  // of each part of the experts as soon as they are computed. RunExperts has then computed the gate
  // and up projections only. Without single-batch overlap, or if the exchange of the batch cannot
  // send parts, RunExperts has computed everything and this does nothing.
  virtual void RunDown(const MoeLayerParts& /*parts*/, MoeState& /*state*/) {}
  virtual void EndCombine(const MoeLayerParts& parts, MoeState& state) = 0;
  // Adds the shared expert's output to own_out [own tokens, H], unless combine has added it.
  virtual void AddShared(const MoeLayerParts& parts, MoeState& state, float* own_out) = 0;

 protected:
  const MoeOptions options_;
  const MoeShape shape_;
  const Mesh mesh_;
  RoutingObserver* observer_ = nullptr;
  ReplicaChooser* chooser_ = nullptr;
};

}  // namespace switchyard
