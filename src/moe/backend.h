// The interface of a device to MoE layers: memory, exchange, and the kernels of the stages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "kernels/gpus.h"
#include "moe/layer_config.h"
#include "moe/options.h"
#include "moe/placement/placement.h"
#include "moe/router/physical_choice.h"
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
  // Returns the `local`-th routed expert in a form that Swap accepts; the weights may stay on the
  // device. Copies no weights.
  virtual OwnedExpert Held(int local) const = 0;
  // The `local`-th routed expert with its weights in host memory, to send them to another rank.
  // Requires `readable`.
  virtual OwnedExpert Expert(int local) const { return Held(local); }
  virtual bool readable() const { return true; }
  // Copies an expert that passed CheckFormats to memory from which Swap can take it quickly. Any
  // thread may call it while passes run, but only one thread at a time.
  virtual OwnedExpert Stage(OwnedExpert expert) const { return expert; }
  // Replaces all routed experts of this rank by `experts`. Each of them must be a result of Held or
  // Stage, or be in host memory. Called on the rank's thread, between two passes. Returns objects
  // that any thread may free.
  virtual std::vector<OwnedExpert> Swap(std::vector<OwnedExpert> experts) = 0;
  // Copies of all experts of the layer in host memory, with MoeOptions::stream_tokens on a GPU, for
  // passes that stream experts. Called before the first pass:
  // - ReserveStreams once, by the rank's thread. `like`: an expert of the sizes of all layers.
  // - KeepForStreams for each logical expert. Several threads may keep experts at the same time.
  // - PinStreams once, by the rank's thread.
  // Error kInvalid names --stream-experts if the format of an expert differs from that of others,
  // kResource if the memory cannot be page-locked.
  virtual void ReserveStreams(const kernels::ExpertWeights& /*like*/) {}
  virtual void KeepForStreams(int32_t /*logical*/, const kernels::ExpertWeights& /*expert*/) {}
  virtual void PinStreams() {}
  // The weights as arrays in the memory of a GPU; none on CPUs. Swap changes their contents.
  virtual std::vector<kernels::DeviceArray> Arrays() const { return {}; }

  MoeLayerConfig config;
};

// A buffer for the rows of a batch in their dispatch format.
struct MoeInputBuffer {
  // Contiguous. Null if there is no buffer; the layer then converts the rows itself.
  std::byte* rows = nullptr;
  RowFormat format;
  Range tokens;  // the part of the attention group's tokens that this rank writes
};

// One per model and rank; its layers share it. MoeLayer calls the stages in order. It runs one
// state after the other, or interleaves the stages of several states. A stage leaves its outputs in
// the state. Every rank calls the same stages in the same order, ranks without tokens included.
// Used by the rank's thread only. Borrows communicators and device, which outlive it.
class MoeBackend {
 public:
  MoeBackend(MoeOptions options, const MoeShape& shape, const Mesh& mesh)
      : options_(std::move(options)), shape_(shape), mesh_(mesh) {}
  virtual ~MoeBackend() = default;

  const MoeOptions& options() const { return options_; }
  const MoeShape& shape() const { return shape_; }
  // Names for profiles. They are valid as long as the backend exists.
  const char* exchange_name() const { return options_.a2a_backend.c_str(); }
  virtual const char* runner_name() const { return options_.runner_backend.c_str(); }
  const Mesh& mesh() const { return mesh_; }
  virtual const RankGroups& groups() const = 0;
  // Whether the tokens of an attention group are partitioned over its ranks. If not, every rank has
  // all tokens and computes a partial sum for each token.
  virtual bool scatters() const = 0;
  // Whether a batch with both decode and prefill rows is split into two exchanges.
  virtual bool splits_mixed_batches() const = 0;

  // Layers that are built after this call report to `observer` (null: none), which must outlive
  // them. Error kInvalid if it requires data that the backend does not expose.
  virtual void Observe(RoutingObserver* observer) = 0;
  // Layers that are built after this call select replicas with `chooser`, which must outlive them.
  // If it is null, each rank sends to one fixed replica of each expert.
  virtual void ChooseReplicasBy(ReplicaChooser* chooser) = 0;
  RoutingObserver* observer() const { return observer_; }
  ReplicaChooser* chooser() const { return chooser_; }

  // Reserves memory for staged experts of up to `layers` layers (−1: of all layers), which exist at
  // the same time. Call it after all layers are placed.
  virtual void ReserveMoves(int /*layers*/) {}
  // Returns the state of a pass. Call it after all layers are placed. `slot` is less than the
  // number of passes in flight.
  virtual std::unique_ptr<MoeState> MakeState(int slot) = 0;
  // Error kInvalid names an unsupported weight format or size.
  virtual std::unique_ptr<MoeLayerParts> Place(MoeLayerConfig config, MoeLayerWeights weights) = 0;

  // Selects the exchange and the round size of a batch. `longest`: number of tokens of the longest
  // lane.
  virtual void SelectExchange(int64_t longest, MoeState& state) = 0;
  // [lane tokens, H] buffers: GatheredRows for the tokens gathered over an MoE-TP group, LaneSums
  // for the partial sums of the group's ranks.
  virtual float* GatheredRows(MoeState& state) = 0;
  virtual float* LaneSums(MoeState& state) = 0;
  // [lane tokens, router_width] buffer for gathered rows of the router, if the device supports
  // MoeLayerConfig::router_width; else null.
  virtual float* GatheredRouterRows(MoeState& /*state*/) { return nullptr; }
  // Returns a buffer for the rows of the next round; its `rows` are null if the backend has none
  // (see MoeLayer::InputRows).
  virtual MoeInputBuffer InputRows(MoeState& /*state*/) { return {}; }
  virtual bool takes_input_rows() const { return false; }  // false: InputRows returns none

  // Called before the first round, as soon as `hidden` is available.
  virtual void Start(const MoeLayerParts& /*parts*/, MoeState& /*state*/) {}
  // Selects the experts of the round's tokens, and stores routed experts and router faults.
  virtual void Route(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void BeginDispatch(const MoeLayerParts& parts, MoeState& state) = 0;
  // Computes the shared expert for the own tokens, or for all tokens if each rank has a TP slice of
  // it. Reads `hidden` only. Called in the first round. On CPUs it may be called anywhere before
  // Scatter. On GPUs it must be called before EndCombine, whose sums include the shared expert's
  // output.
  virtual void RunShared(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void EndDispatch(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void PrePermute(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void RunExperts(const MoeLayerParts& parts, MoeState& state) = 0;
  // Called instead of RunExperts for an aborted batch. Leaves the outputs undefined. A backend that
  // computes the experts in another stage still computes them there.
  virtual void SkipExperts(const MoeLayerParts& /*parts*/, MoeState& /*state*/) {}
  virtual void PostPermute(const MoeLayerParts& parts, MoeState& state) = 0;
  virtual void BeginCombine(const MoeLayerParts& parts, MoeState& state) = 0;
  // Single-batch overlap: RunExperts has computed the gate and up projections only. RunDown
  // computes the down projection in parts, and combine sends the outputs of each part as soon as
  // they are computed. RunDown does nothing without single-batch overlap, or if the exchange of the
  // batch cannot send parts; RunExperts has then computed everything.
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
