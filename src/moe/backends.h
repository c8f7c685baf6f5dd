// The registries of dispatchers, fused operators, runners and permutes that form an MoE path. This
// file has the registries for ranks on CPUs; gpu_backends.h has those for ranks on GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moe/dispatchers/dispatcher.h"
#include "moe/dispatchers/exchange_memory.h"
#include "moe/gpu_backends.h"
#include "moe/options.h"
#include "moe/permute/permute.h"
#include "moe/placement/placement.h"
#include "moe/registry.h"
#include "moe/runners/runner.h"
#include "moe/types.h"

namespace switchyard {

// The interface of fused MoE operators: dispatch, experts and combine in one.

// Runs dispatch, experts and combine as one operator. It may process rows as they arrive and never
// materializes the rows of all experts. It replaces a dispatcher, a runner and their permutes;
// results are bit-identical to theirs. The rules of Dispatcher apply: all ranks make the same calls
// in the same order, and a batch's state is in its handle.
//
// Owned by the backend. Used by the rank's thread only.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;

  virtual bool Supports(WeightFormat format) const = 0;
  // Maximum tokens of one rank in one exchange.
  virtual int64_t MaxTokens(bool decode) const = 0;

  // x [topk.tokens, H] and `topk` must stay valid and unchanged until End returns.
  virtual void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) = 0;
  // Runs this rank's experts on the rows of all ranks, and waits for the outputs of its own tokens.
  // y [topk.tokens, H] as from Dispatcher::EndCombine.
  virtual void End(const ExpertBlock& block, DispatchHandle* handle, float* y) = 0;
};

class MaskedRanks;

// Rows that combine returns to a token's rank (--moe-combine-rows): one output per slot, or one
// partial sum per rank.
enum class CombineRows : uint8_t { kSlot, kRank };

// Sizes of an exchange, the same on all ranks.
struct ExchangeShape {
  int64_t hidden = 0;
  int k = 0;  // top-k slots of a token: top_k, plus one if the shared expert is dispatched
  int num_experts = 0;        // physical experts of all ranks, including dispatched shared experts
  int64_t local_experts = 0;  // experts of one rank; maximum over ranks
  int64_t max_tokens = 0;     // maximum tokens of one rank in one forward pass
  RowFormat row_format;       // format of dispatched rows
  DType output_dtype = DType::kF32;  // type of combined rows
  int ep = 1;
  CombineRows combine_rows = CombineRows::kSlot;
  // Maximum number of parts in which combine returns outputs (expert_parts.h). It is 1 without
  // single-batch overlap.
  int combine_parts = 1;
};
ExchangeShape ExchangeShapeOf(const MoeOptions& options, const MoeShape& shape,
                              const MeshShape& mesh);

// Constructor arguments of a dispatcher.
struct DispatcherContext {
  const MoeOptions& options;
  const ExchangeShape& shape;
  const ExpertMap& experts;  // outlives the dispatcher, as do comm and pool
  RankComm& comm;
  ThreadPool& pool;
  MaskedRanks* elastic = nullptr;  // set if ranks may fail (dispatchers/masked_ranks.h)
};

template <typename Backend>
struct ExchangeBackend {
  // Constructs a backend, which allocates its symmetric buffers. Called on all ranks in the same
  // order.
  std::function<std::unique_ptr<Backend>(const DispatcherContext&)> make;
  // Exact number of bytes that `make` allocates on each rank. Error kInvalid if the options are
  // incompatible.
  std::function<size_t(const MoeOptions&, const ExchangeShape&)> symmetric_bytes;
  std::string summary;  // for `switchyard backends`
  // The buffers that add up to `symmetric_bytes`, for the log; optional.
  std::function<ExchangeMemory(const MoeOptions&, const ExchangeShape&)> memory = nullptr;
  bool combines_by_rank = false;   // supports --moe-combine-rows rank
  bool combines_in_parts = false;  // supports Dispatcher::BeginCombinePart
  bool hosts = true;               // supports ranks on several hosts, not only on one
};
using DispatcherBackend = ExchangeBackend<Dispatcher>;
using FusedBackend = ExchangeBackend<FusedExperts>;

// Makes the registry entry of a class that is constructed from a DispatcherContext. The class must
// have a static function Memory(options, shape) that describes its allocations.
template <typename Interface, typename Backend>
ExchangeBackend<Interface> BackendOf(std::string summary) {
  return {.make = [](const DispatcherContext& c) { return std::make_unique<Backend>(c); },
          .symmetric_bytes =
              [](const MoeOptions& options, const ExchangeShape& shape) {
                return Backend::Memory(options, shape).bytes();
              },
          .summary = std::move(summary),
          .memory = Backend::Memory};
}

struct RunnerBackend {
  std::function<std::unique_ptr<Runner>()> make;
  std::string summary;
};

// A new backend needs one file and one call of Add. The same name may be registered for CPUs, for
// GPUs, or for both.
struct MoeBackends {
  Registry<DispatcherBackend> dispatchers{"--moe-a2a-backend"};
  // Fused operators are also selected by --moe-a2a-backend. --moe-runner-backend must then be auto
  // or the same name.
  Registry<FusedBackend> fused{"--moe-a2a-backend"};
  Registry<RunnerBackend> runners{"--moe-runner-backend"};
  std::string auto_runner = "grouped_mlp";  // the runner that --moe-runner-backend auto selects
  PermuteTable permutes;
  GpuMoeBackends gpus;  // registries for ranks on GPUs
};

// The backends of this build.
MoeBackends BuiltinMoeBackends();

// The table of backends and their pairings that `switchyard backends` prints.

// Returns a text that lists dispatchers, fused operators, and runners with their weight formats. It
// also shows the permutes that pair each dispatcher with each runner, and the mapping of SGLang's
// names. `options` selects the modes, which determine the layouts that a dispatcher delivers. The
// properties are those of backends that are built for one rank with minimal sizes. Error kInvalid
// if a backend rejects `options`.
std::string BackendTable(const MoeOptions& options, const MoeBackends& backends);

// Returns a text with the backend that the options select for experts of these formats, and why it
// was selected. If no backend supports the formats, the text says why.
std::string ExplainChoice(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                          const MoeBackends& backends);

}  // namespace switchyard
