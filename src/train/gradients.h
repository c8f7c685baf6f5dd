// Sums of gradients: over micro-batches, and over ranks after the last micro-batch of a step.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

#include "comm/device/collectives.h"
#include "comm/device/symmetric_memory.h"
#include "train/parameter.h"

namespace switchyard::train {

// Gradient sums over ranks, after the last micro-batch of a step.

// The groups over which a rank's gradients must be summed; null: the rank is alone in the group.
struct GradientGroups {
  // All ranks of the pipeline stage, for replicated tensors. Each rank has the gradient of its own
  // rows and heads only.
  Collectives* stage = nullptr;
  Collectives* copies = nullptr;         // ranks with the same tensor-parallel shard and other rows
  Collectives* expert_copies = nullptr;  // ranks with the same experts
  // Ranks of the first and last stage that hold the tied embedding.
  Collectives* embedding = nullptr;

  // The ranks that hold copies of this rank's part of a parameter. An embedding on two stages has
  // further copies in `embedding`.
  template <typename T>
  Collectives* Of(const Parameter<T>& p) const {
    if (p.expert) return expert_copies;
    return p.slice.partial() ? copies : stage;
  }
};

// Sums the gradient of each parameter over its group, exactly once and in place. The order of the
// sum is the rank order, so all ranks that hold a tensor get the same bits. Collective: every rank
// of a group must pass the same parameters in the same order. For a parameter with shards, only
// this rank's shard gets the sum, by a reduce-scatter with the same order of additions. The other
// elements of its gradient are then meaningless.
void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// SumGradients for a single pipeline stage without tensor parallelism. `all`: the ranks of the
// stage.
void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies = nullptr);

// Shards of parameters for the optimizer (ZeRO stage 1).

// Divides each parameter that has a gradient among the members of its group (GradientGroups::Of).
// The numbers of blocks (Shards::kBlock) of two members differ by at most one, over all parameters
// of a group. Call it once, before the optimizer is constructed. No communication, but every rank
// of a group must pass the same parameters in the same order.
void ShardMoments(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// Sends the values of each shard to all members. Call it after each update. Parameters without
// shards are left as they are. Collective, like SumGradients.
void GatherShards(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// Gradient sums that overlap the backward pass.

// Runs the sums on a background thread in the order of Start. Every rank starts the same sums in
// the same order. Owned by a rank; Start and Await are called by the rank's thread.
class GradientSums {
 public:
  using Parameters = std::span<Parameter<float>* const>;

  // `sum` sums gradients over the ranks. It runs on the background thread, so its collectives need
  // an arena of their own, `arena`. The timeouts are those of the collectives. If the object is
  // destroyed before all sums are done, the arena is aborted.
  GradientSums(std::function<void(Parameters)> sum, std::shared_ptr<SharedArena> arena);
  ~GradientSums();

  // No other code may touch the gradients until Await has returned. `parameters` is borrowed until
  // then.
  void Start(Parameters parameters);
  // Blocks until all sums are done. Rethrows the exception of a sum.
  void Await();
  // Aborts the sums of all ranks with this reason. Call it on a rank that ends because of an error.
  void Abort(std::string_view reason) { arena_->AbortHere(reason); }

 private:
  void Run();

  const std::function<void(Parameters)> sum_;
  const std::shared_ptr<SharedArena> arena_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_: the pending sums, including the sum in progress, and how the thread ended.
  std::deque<Parameters> waiting_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace switchyard::train
