#include "moe/runtime.h"

#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "moe/rows.h"

namespace switchyard {
namespace {

void CheckOptions(const MoeOptions& options) {
  if (!IsRowDType(options.row_dtype))
    throw Invalid("--dtype {}: token rows travel as float32, bfloat16 or float16",
                  Name(options.row_dtype));
  if (options.max_dispatch_tokens_per_rank < 1)
    throw Invalid("--num-max-dispatch-tokens-per-rank {}: want at least 1",
                  options.max_dispatch_tokens_per_rank);
}

std::map<DispatchLayout, PermutePair> FindPermutes(const MoeOptions& options,
                                                   const Dispatcher& dispatcher,
                                                   const Runner& runner,
                                                   const PermuteTable& table) {
  std::map<DispatchLayout, PermutePair> found;
  for (const DispatchLayout from : dispatcher.layouts()) {
    const PermutePair* pair = table.Find(from, runner.layout());
    if (!pair)
      throw Invalid(
          "--moe-a2a-backend {} delivers the layout {}, which nothing brings into the layout {} of "
          "--moe-runner-backend {}; what can be joined: {}",
          options.a2a_backend, Name(from), Name(runner.layout()), options.runner_backend,
          table.Pairs());
    found[from] = *pair;
  }
  return found;
}

}  // namespace

MoeRuntime::MoeRuntime(const MoeOptions& options, const MoeShape& shape, RankComm& comm,
                       ThreadPool& pool, const MoeBackends& backends)
    : options_(options), shape_(shape), comm_(comm), pool_(pool) {
  CHECK(shape.hidden > 0 && shape.num_experts > 0 && shape.top_k > 0 && shape.max_tokens > 0);
  CheckOptions(options);
  const ExpertRange experts = ExpertsOfRank(shape.num_experts, comm.mesh.ep(), comm.mesh.ep_rank());
  num_local_experts_ = experts.end - experts.begin;
  runner_ = backends.runners.Find(options.runner_backend)();
  dispatcher_ =
      backends.dispatchers.Find(options.a2a_backend).make({options_, shape_, comm_, pool_});
  permutes_ = FindPermutes(options, *dispatcher_, *runner_, backends.permutes);

  batch_.hidden_size = shape.hidden;
  if (dispatcher_->scatters()) {
    batch_.parts = comm.mesh.ep();
    batch_.part = comm.mesh.ep_rank();
  }
}

MoeBatch& MoeRuntime::StartBatch(const float* hidden, int64_t tokens, bool decode, float* out) {
  batch_.hidden = hidden;
  batch_.out = out;
  batch_.tokens = tokens;
  batch_.decode = decode;
  batch_.max_round_tokens = dispatcher_->MaxTokens(decode);
  batch_.round = batch_.own = {};
  return batch_;
}

std::shared_ptr<MoeRuntime> MakeMoeRuntime(const MoeOptions& options, const MoeShape& shape,
                                           RankComm& comm, ThreadPool& pool) {
  return std::make_shared<MoeRuntime>(options, shape, comm, pool, BuiltinMoeBackends());
}

size_t MoeSymmetricBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
  CheckOptions(options);
  return BuiltinMoeBackends()
      .dispatchers.Find(options.a2a_backend)
      .symmetric_bytes(options, shape, mesh);
}

}  // namespace switchyard
