// The MoE backend of ranks on CPUs: dispatcher, runner and permutes, or a fused operator.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moe/backend.h"
#include "moe/backends.h"
#include "moe/runners/runner.h"
#include "moe/runners/shared_expert.h"
#include "moe/scratch.h"

namespace switchyard {

// Outputs of each stage, which the next stage reads. Memory is reused between batches, so that the
// steady state allocates nothing.
struct CpuMoeState : MoeState {
  using MoeState::MoeState;

  Scratch<float> gathered, gathered_router, lane_sums;
  Scratch<float> logits;  // router logits [round, num_logits]
  TopK logical;           // [round, top_k] logical experts that the router selects
  // [round, k] physical experts. Used only if these differ from the logical experts.
  TopK physical;
  const TopK* topk = nullptr;
  Scratch<float> scaled;        // [round, H] rows times their weights (RouterConfig::scales_input)
  Scratch<float> zero_weights;  // [lane tokens] weights of experts without computation
  const float* dispatch_x = nullptr;  // [round, H] the round's rows as the experts receive them
  DispatchHandle handle;
  Dispatched dispatched;
  GroupedRows grouped;
  // Runner outputs [grouped rows, H]. Not used if outputs_written: the runner then wrote them to
  // Dispatcher::OutputDestinations.
  Scratch<float> outputs;
  bool outputs_written = false;
  std::span<std::byte* const> destinations;  // result of OutputDestinations, if outputs_written
  Scratch<float> middle;                     // activated rows between RunExperts and RunDown
  ExpertRows expert_rows;
  SharedExpertScratch shared;
};

// The selected backends and their symmetric buffers. Borrows communicators and threads, which
// outlive it.
class CpuMoeBackend : public MoeBackend {
 public:
  // Requires options that moe/check_options.h accepts. Allocates symmetric memory, so all ranks
  // construct their backends in the same order. Beside a GPU, the threads of `pool` stay awake
  // between layers.
  CpuMoeBackend(const MoeOptions& options, const MoeShape& shape, RankComm& comm, ThreadPool& pool,
                const MoeBackends& backends);

  RankComm& comm() const { return comm_; }
  ThreadPool& pool() const { return pool_; }
  const ExchangeShape& exchange() const { return exchange_; }
  const ExpertMap& experts() const { return experts_; }
  // There is either a fused operator, or a dispatcher with a runner and permutes.
  FusedExperts* fused() const { return fused_.get(); }
  Dispatcher& dispatcher() const { return *dispatcher_; }
  Runner& runner() const { return *runner_; }
  const char* runner_name() const override { return runner_name_.c_str(); }
  const PermutePair& permute(DispatchLayout from) const { return permutes_.at(from); }
  PermuteContext permute_context() const;
  bool Supports(WeightFormat format) const;
  bool shared_dispatched() const { return options_.waterfill && shape_.has_shared; }
  // Whether RunDown computes the down projection (single-batch overlap).
  bool splits_down() const { return !fused_ && dispatcher_->combine_parts() > 1; }

  const RankGroups& groups() const override { return groups_; }
  bool scatters() const override { return fused_ || dispatcher_->scatters(); }
  bool splits_mixed_batches() const override {
    return dispatcher_ && dispatcher_->splits_mixed_batches();
  }
  void Observe(RoutingObserver* observer) override;
  void ChooseReplicasBy(ReplicaChooser* chooser) override { chooser_ = chooser; }

  std::unique_ptr<MoeState> MakeState(int slot) override;
  std::unique_ptr<MoeLayerParts> Place(MoeLayerConfig config, MoeLayerWeights weights) override;
  void SelectExchange(int64_t longest, MoeState& state) override;
  float* GatheredRows(MoeState& state) override;
  float* LaneSums(MoeState& state) override;
  float* GatheredRouterRows(MoeState& state) override;
  MoeInputBuffer InputRows(MoeState& state) override;
  bool takes_input_rows() const override { return !fused_; }

  void Route(const MoeLayerParts& parts, MoeState& state) override;
  void BeginDispatch(const MoeLayerParts& parts, MoeState& state) override;
  void RunShared(const MoeLayerParts& parts, MoeState& state) override;
  void EndDispatch(const MoeLayerParts& parts, MoeState& state) override;
  void PrePermute(const MoeLayerParts& parts, MoeState& state) override;
  void RunExperts(const MoeLayerParts& parts, MoeState& state) override;
  void SkipExperts(const MoeLayerParts& parts, MoeState& state) override;
  void PostPermute(const MoeLayerParts& parts, MoeState& state) override;
  void BeginCombine(const MoeLayerParts& parts, MoeState& state) override;
  void RunDown(const MoeLayerParts& parts, MoeState& state) override;
  void EndCombine(const MoeLayerParts& parts, MoeState& state) override;
  void AddShared(const MoeLayerParts& parts, MoeState& state, float* own_out) override;

 private:
  std::span<const uint8_t> active_ranks() const {
    return dispatcher_ ? dispatcher_->active_ranks() : std::span<const uint8_t>();
  }
  void StageInputRows(CpuMoeState& state) const;
  void ScaleInputRows(CpuMoeState& state) const;
  void AddZeroExperts(const CpuMoeState& state, float* own_out) const;
  std::span<std::byte* const> OutputPlaces(CpuMoeState& state) const;

  const ExchangeShape exchange_;
  RankComm& comm_;
  const RankGroups groups_;
  ThreadPool& pool_;
  const ExpertMap experts_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Runner> runner_;
  std::string runner_name_;  // name of the runner, or of the fused operator if there is one
  std::unique_ptr<FusedExperts> fused_;
  std::map<DispatchLayout, PermutePair> permutes_;
};

// Returns the MoE backend of a rank on CPUs. Layers hold a pointer to it. It allocates symmetric
// memory, so it is built once per model, and on every rank in the same order. `backends`: null for
// the built-in ones.
std::shared_ptr<CpuMoeBackend> MakeCpuMoe(const MoeOptions& options, const MoeShape& shape,
                                          RankComm& comm, ThreadPool& pool,
                                          std::shared_ptr<const MoeBackends> backends = nullptr);

}  // namespace switchyard
