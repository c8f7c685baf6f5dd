// What every endpoint is given.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "server/api/known_fields.h"
#include "server/front/front.h"
#include "server/front/served_model.h"

namespace switchyard {

// Outlives the HTTP server. Handlers use it from I/O threads.
struct Service {
  Front& front;
  const ServedModel& model;
  const ServerArgs& args;
  const EnginePlan& plan;
  mutable UnknownFields unknown_fields;  // of requests so far
  std::atomic<bool> ready{false};        // the ranks have loaded and answered the warm-up request
  // Describes a rank without a heartbeat, or returns "". Set before `ready`.
  std::function<std::string()> find_silent_rank = [] { return std::string(); };
};

}  // namespace switchyard
