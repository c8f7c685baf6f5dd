// One MoE layer on one rank: router → dispatch → pre-permute → grouped GEMM → post-permute →
// combine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "moe/backend.h"
#include "moe/layer_config.h"

namespace switchyard {

// Adds the time from construction to destruction to `part` of the state's times, if the state is
// timed. A null `part` adds nothing.
class StageClock {
 public:
  StageClock(MoeState& state, int64_t MoeTimes::*part)
      : part_(state.timed && part != nullptr ? &(state.times.*part) : nullptr) {
    if (part_) begin_ = std::chrono::steady_clock::now();
  }
  ~StageClock() {
    if (part_)
      *part_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count();
  }
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

 private:
  int64_t* const part_;
  std::chrono::steady_clock::time_point begin_;
};

// Implements the order of the stages and the partition of tokens over ranks, the same on CPUs and
// GPUs. The backend implements the kernels and the exchange. The state holds the batch. Used by the
// rank's thread only.
//
// Forward runs one batch to its end:
//
//   Start, then for each round: Route, BeginDispatch, RunShared (first round), EndDispatch,
//   PrePermute, RunExperts, PostPermute, BeginCombine, RunDown, EndCombine; then Scatter
//
// A caller that runs the stages itself may interleave several batches, each with its own state.
class MoeLayer {
 public:
  // Error kInvalid names the unsupported parameter.
  MoeLayer(MoeLayerConfig config, MoeLayerWeights weights, std::shared_ptr<MoeBackend> backend);

  // MakeState returns a state for passes through all layers of this layer's backend. Call it after
  // all these layers are built.
  const MoeBackend& backend() const { return *backend_; }
  std::unique_ptr<MoeState> MakeState(int slot = 0) const { return backend_->MakeState(slot); }

  // hidden, out [tokens of this rank's attention group, H] in the memory of the layer's device,
  // replicated over the ranks of the group (out may not alias hidden). Every rank of the world
  // calls Forward, including ranks with empty groups. On a GPU the work is enqueued. It depends
  // only on the counts in `tokens`, so it can be captured in a CUDA graph and replayed.
  void Forward(MoeState& state, const float* hidden, const MoeTokens& tokens, float* out) const;

  // Begins a batch that has a single round. The caller then runs the stages from Route to
  // EndCombine, and Scatter. If Forward would need several rounds or two batches, or if no group
  // has tokens, begins nothing and returns false. The result is equal on all ranks, except that
  // ranks on CPUs return false for passes that the GPU computes alone (--stream-experts).
  bool StartOneRound(MoeState& state, const float* hidden, const MoeTokens& tokens,
                     float* out) const;

  // Returns a buffer to which the producer of `hidden` may also write the rows in the dispatch
  // format. This saves a conversion and a copy. Call it at most once before each Forward, with the
  // same state and tokens. Either all ranks of a group call it or none.
  MoeInputBuffer InputRows(MoeState& state, const MoeTokens& tokens) const;

  // Begins a batch of group_tokens[own group] rows at `hidden`, before its first round. `decode`:
  // every sequence has one row, on all ranks.
  void Start(MoeState& state, const float* hidden, std::span<const int64_t> group_tokens,
             bool decode, float* out) const;
  void Route(MoeState& s) const { Run(&MoeBackend::Route, BatchStage::kRouted, s); }
  void BeginDispatch(MoeState& s) const { Run(&MoeBackend::BeginDispatch, BatchStage::kSent, s); }
  void RunShared(MoeState& s) const {
    const StageClock clock(s, &MoeTimes::experts);
    backend_->RunShared(*parts_, s);
    if (s.overlaps) s.MarkStage(nullptr);
  }
  void EndDispatch(MoeState& s) const { Run(&MoeBackend::EndDispatch, BatchStage::kArrived, s); }
  void PrePermute(MoeState& s) const { Run(&MoeBackend::PrePermute, BatchStage::kPermuted, s); }
  void RunExperts(MoeState& s) const { Run(&MoeBackend::RunExperts, BatchStage::kComputed, s); }
  void PostPermute(MoeState& s) const { Run(&MoeBackend::PostPermute, BatchStage::kReady, s); }
  void BeginCombine(MoeState& s) const { Run(&MoeBackend::BeginCombine, BatchStage::kReturned, s); }
  void RunDown(MoeState& s) const { Run(&MoeBackend::RunDown, BatchStage::kDown, s); }
  // If one combine covers all rounds, does nothing before the last round.
  void EndCombine(MoeState& s) const {
    if (s.ends_combine()) Run(&MoeBackend::EndCombine, BatchStage::kEnded, s);
  }
  // Replicates the outputs over the attention group. Call it after the last round.
  void Scatter(MoeState& state) const;

  // Ends a batch of StartOneRound between two of its stages, without a result: `out` has undefined
  // rows. Every rank calls it between the same stages. It completes the exchange, so that the state
  // and its buffers can be used for the next batch, but skips the experts' GEMMs. Batches of other
  // states are not affected. Does nothing after EndCombine.
  void Abort(MoeState& state) const;

  // Switches to `placement` from the next pass on; it must have the same number of physical
  // experts. `experts`: this rank's experts in the new placement. Call it between the same two
  // passes on every rank. With an all-to-all backend, MoE-TP 1 and combine by slot, the outputs
  // stay bit-identical. Returns the previous experts.
  std::vector<OwnedExpert> SwitchPlacement(ExpertPlacement placement,
                                           std::vector<OwnedExpert> experts);
  const ExpertPlacement& placement() const { return parts_->config.placement; }
  // Error kInvalid names --moe-runner-backend if it does not support the expert's format.
  void CheckFormats(const kernels::ExpertWeights& expert) const { parts_->CheckFormats(expert); }
  // The following functions call MoeLayerParts. `local`: index among this rank's routed experts.
  // Other threads may call them, but not while SwitchPlacement runs.
  OwnedExpert Held(int local) const { return parts_->Held(local); }
  OwnedExpert Expert(int local) const { return parts_->Expert(local); }
  bool readable() const { return parts_->readable(); }
  OwnedExpert Stage(OwnedExpert expert) const { return parts_->Stage(std::move(expert)); }
  void ReserveStreams(const kernels::ExpertWeights& like) const { parts_->ReserveStreams(like); }
  void KeepForStreams(int32_t logical, const kernels::ExpertWeights& expert) const {
    parts_->KeepForStreams(logical, expert);
  }
  void PinStreams() const { parts_->PinStreams(); }
  std::vector<kernels::DeviceArray> Arrays() const { return parts_->Arrays(); }

 private:
  void CheckTokens(const MoeTokens& tokens) const;
  // Whether this rank has no part in the batch: a rank with experts only, whose experts a GPU
  // computes (StreamsExperts).
  bool IsSpared(const MoeTokens& tokens) const;
  // Whether the decode rows of `tokens` and its other rows are processed as two batches.
  bool IsSplit(const MoeTokens& tokens) const;
  // Sets where a batch stores routed experts and router faults. `first`: index of the batch's first
  // row in the group.
  void SetRecords(MoeState& state, const MoeTokens& tokens, int64_t first) const;
  void Prepare(MoeState& state, std::span<const int64_t> group_tokens, bool decode) const;
  void Gather(MoeState& state) const;
  void RunRound(MoeState& state) const;
  // The time to which a stage counts; null: none.
  static int64_t MoeTimes::*PartOf(BatchStage stage);
  void ScatterSums(MoeState& state) const;
  using StageFunction = void (MoeBackend::*)(const MoeLayerParts&, MoeState&);
  void Run(StageFunction run, BatchStage stage, MoeState& s) const {
    const StageClock clock(s, PartOf(stage));
    (backend_.get()->*run)(*parts_, s);
    // The next work on a device may be that of another batch.
    if (s.overlaps) s.MarkStage(nullptr);
    s.stage = stage;
  }
  void ApplyPlacement();
  // Returns the sizes of the own rows of `ranks` ranks, beginning with rank `first`. `size`: bytes
  // or floats per row.
  std::span<const size_t> PartSizes(MoeState& state, int first, int ranks, size_t size) const;

  std::shared_ptr<MoeBackend> backend_;
  std::unique_ptr<MoeLayerParts> parts_;
};

}  // namespace switchyard
