// The parts a MoE path can be put together from.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "moe/dispatcher.h"
#include "moe/layer.h"
#include "moe/permute.h"
#include "moe/registry.h"
#include "moe/runner.h"

namespace switchyard {

// What a dispatcher is built from.
struct DispatcherContext {
  const MoeOptions& options;
  const MoeShape& shape;
  RankComm& comm;  // outlives the dispatcher
  ThreadPool& pool;
};

struct DispatcherBackend {
  // Allocates its symmetric buffers; called on all ranks in one order.
  std::function<std::unique_ptr<Dispatcher>(const DispatcherContext&)> make;
  // Bytes that `make` allocates on each rank, exactly.
  std::function<size_t(const MoeOptions&, const MoeShape&, const MeshShape&)> symmetric_bytes;
};

using RunnerBackend = std::function<std::unique_ptr<Runner>()>;

// A new backend is one file and one Add.
struct MoeBackends {
  Registry<DispatcherBackend> dispatchers{"--moe-a2a-backend"};
  Registry<RunnerBackend> runners{"--moe-runner-backend"};
  PermuteTable permutes;
};

// Those of this build.
MoeBackends BuiltinMoeBackends();

}  // namespace switchyard
