// State shared by the MoE layers of one rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "moe/backends.h"
#include "moe/batch.h"
#include "moe/layer.h"
#include "moe/replica_chooser.h"
#include "moe/routing_observer.h"

namespace switchyard {

// The selected backends, their symmetric buffers, and the scratch of the current batch. One per
// model and rank; layers hold it. Borrows communicators and threads, which outlive it. Used by the
// rank's thread only.
class MoeRuntime {
 public:
  // Error kInvalid names the flag: an unknown backend, or a dispatcher and a runner without a
  // permute (with the list of existing ones). Allocates symmetrically: all ranks, in one order.
  MoeRuntime(const MoeOptions& options, const MoeShape& shape, RankComm& comm, ThreadPool& pool,
             std::shared_ptr<const MoeBackends> backends);

  const MoeOptions& options() const { return options_; }
  const MoeShape& shape() const { return shape_; }
  RankComm& comm() const { return comm_; }
  ThreadPool& pool() const { return pool_; }
  const ExchangeShape& exchange() const { return exchange_; }
  const ExpertMap& experts() const { return experts_; }
  // Either the fused operator, or a dispatcher with a runner and permutes.
  FusedExperts* fused() const { return fused_.get(); }
  Dispatcher& dispatcher() const { return *dispatcher_; }
  Runner& runner() const { return *runner_; }
  const PermutePair& permute(DispatchLayout from) const { return permutes_.at(from); }
  PermuteContext permute_context() const;

  bool Supports(WeightFormat format) const;
  bool scatters() const { return fused_ || dispatcher_->scatters(); }
  bool splits_mixed_batches() const { return dispatcher_ && dispatcher_->splits_mixed_batches(); }
  std::span<const uint8_t> active_ranks() const {
    return dispatcher_ ? dispatcher_->active_ranks() : std::span<const uint8_t>();
  }
  // Layers built from now on report to `observer` (null: none), which outlives them. Error kInvalid
  // if it requires data that the backend does not expose.
  void Observe(RoutingObserver* observer);
  RoutingObserver* observer() const { return observer_; }
  // Layers built from now on select replicas with `chooser`, which outlives them (null: each rank
  // sends to one fixed replica of each expert).
  void ChooseReplicasBy(ReplicaChooser* chooser) { chooser_ = chooser; }
  ReplicaChooser* chooser() const { return chooser_; }
  bool shared_dispatched() const { return options_.waterfill && shape_.has_shared; }

  // Initializes a batch of group_tokens[own group] rows at `hidden`, before its first round. The
  // runtime owns one batch; callers may own others.
  void StartBatch(const float* hidden, std::span<const int64_t> group_tokens, bool decode,
                  float* out, MoeBatch* batch) const;
  MoeBatch& batch() { return batch_; }

 private:
  int64_t MaxTokens(bool decode) const;

  const MoeOptions options_;
  const MoeShape shape_;
  const ExchangeShape exchange_;
  RankComm& comm_;
  ThreadPool& pool_;
  const ExpertMap experts_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<FusedExperts> fused_;
  std::map<DispatchLayout, PermutePair> permutes_;
  MoeBatch batch_;
  RoutingObserver* observer_ = nullptr;
  ReplicaChooser* chooser_ = nullptr;
};

}  // namespace switchyard
