// The parts a MoE path can be put together from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "moe/dispatcher.h"
#include "moe/exchange_memory.h"
#include "moe/fused.h"
#include "moe/options.h"
#include "moe/permute.h"
#include "moe/placement.h"
#include "moe/registry.h"
#include "moe/runner.h"

namespace switchyard {

class ElasticRanks;

// What returns to a token's rank (--moe-combine-rows): each slot's output, or what the outputs of
// each rank add up to.
enum class CombineRows : uint8_t { kSlot, kRank };

// What an exchange is sized by, the same on all ranks.
struct ExchangeShape {
  int64_t hidden = 0;
  int k = 0;            // slots of a token: top_k, and one where the shared expert is dispatched
  int num_experts = 0;  // physical, of all ranks, dispatched shared ones included
  int64_t local_experts = 0;         // most of one rank
  int64_t max_tokens = 0;            // most of one rank in one pass
  RowFormat row_format;              // of rows on the way to the experts
  DType output_dtype = DType::kF32;  // of rows on the way back
  int ep = 1;
  CombineRows combine_rows = CombineRows::kSlot;
};
ExchangeShape ExchangeShapeOf(const MoeOptions& options, const MoeShape& shape,
                              const MeshShape& mesh);

// What a dispatcher is built from.
struct DispatcherContext {
  const MoeOptions& options;
  const ExchangeShape& shape;
  const ExpertMap& experts;  // outlives the dispatcher, as do comm and pool
  RankComm& comm;
  ThreadPool& pool;
  ElasticRanks* elastic = nullptr;  // where ranks may be lost (dispatchers/elastic_ranks.h)
};

template <typename Backend>
struct ExchangeBackend {
  // Allocates its symmetric buffers; called on all ranks in one order.
  std::function<std::unique_ptr<Backend>(const DispatcherContext&)> make;
  // Bytes that `make` allocates on each rank, exactly. Error kInvalid where the options do not fit.
  std::function<size_t(const MoeOptions&, const ExchangeShape&)> symmetric_bytes;
  std::string summary;  // for `switchyard backends`
  // The same bytes by buffer, for the log; or none.
  std::function<ExchangeMemory(const MoeOptions&, const ExchangeShape&)> memory = nullptr;
  bool combines_by_rank = false;  // takes --moe-combine-rows rank
};
using DispatcherBackend = ExchangeBackend<Dispatcher>;
using FusedBackend = ExchangeBackend<FusedExperts>;

// Of a class that is built from a context and whose Memory(options, shape) says what it allocates.
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

// A new backend is one file and one Add.
struct MoeBackends {
  Registry<DispatcherBackend> dispatchers{"--moe-a2a-backend"};
  // Named by --moe-a2a-backend too; --moe-runner-backend is then auto or the same name.
  Registry<FusedBackend> fused{"--moe-a2a-backend"};
  Registry<RunnerBackend> runners{"--moe-runner-backend"};
  std::string auto_runner = "grouped_mlp";  // what --moe-runner-backend auto means
  PermuteTable permutes;
};

// Those of this build.
MoeBackends BuiltinMoeBackends();

}  // namespace switchyard
