// What the MoE layers of one rank share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "moe/backends.h"
#include "moe/batch.h"
#include "moe/layer.h"

namespace switchyard {

// The backends that the flags chose, their symmetric buffers, and the scratch of the batch under
// way. One per model and rank; layers hold it. Borrows communicators and threads, which outlive it.
// Used by the rank's thread only.
class MoeRuntime {
 public:
  // Error kInvalid names the flag: an unknown backend, or a dispatcher and a runner that no permute
  // joins (with those that exist). Allocates symmetrically: all ranks, in one order.
  MoeRuntime(const MoeOptions& options, const MoeShape& shape, RankComm& comm, ThreadPool& pool,
             const MoeBackends& backends);

  const MoeOptions& options() const { return options_; }
  const MoeShape& shape() const { return shape_; }
  RankComm& comm() const { return comm_; }
  ThreadPool& pool() const { return pool_; }
  Dispatcher& dispatcher() const { return *dispatcher_; }
  Runner& runner() const { return *runner_; }
  const PermutePair& permute(DispatchLayout from) const { return permutes_.at(from); }
  PermuteContext permute_context() const { return {shape_.hidden, num_local_experts_, pool_}; }

  // Points the batch under way at new tokens, before its first round.
  MoeBatch& StartBatch(const float* hidden, int64_t tokens, bool decode, float* out);

 private:
  const MoeOptions options_;
  const MoeShape shape_;
  RankComm& comm_;
  ThreadPool& pool_;
  int num_local_experts_ = 0;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Runner> runner_;
  std::map<DispatchLayout, PermutePair> permutes_;
  MoeBatch batch_;
};

}  // namespace switchyard
