// Shared state of all HTTP endpoints.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "server/api/known_fields.h"
#include "server/front/elastic_ranks.h"
#include "server/front/front.h"
#include "server/front/grammars.h"
#include "server/front/rank_weights.h"
#include "server/front/served_model.h"
#include "server/front/sessions.h"

namespace switchyard {

namespace trace {
class Tracer;
}  // namespace trace

class Recorder;

// Outlives the HTTP server. Handlers use it from I/O threads.
struct Service {
  Front& front;
  const ServedModel& model;
  const ServerArgs& args;
  const EnginePlan& plan;
  Grammars* grammars = nullptr;          // null if --grammar-backend is none
  mutable UnknownFields unknown_fields;  // unknown fields seen in requests so far
  std::atomic<bool> ready{false};        // ranks have loaded, and the warm-up request has finished
  // Returns the description of a rank without a recent heartbeat, or "" if there is none. The
  // function is set before `ready` becomes true.
  std::function<std::string()> find_silent_rank = [] { return std::string(); };
  // Changes the layout of the ranks. Set before `ready` becomes true. Null: the layout never
  // changes, so `args` and `plan` describe it.
  std::atomic<ElasticRanks*> elastic{nullptr};
  mutable Sessions sessions;
  std::shared_ptr<Recorder> recorder;     // null: requests are not recorded
  std::shared_ptr<trace::Tracer> tracer;  // --enable-trace; null: requests are not traced
  // Shared with the HTTP server, so that clients can change it.
  std::shared_ptr<http::RequestLog> request_log = std::make_shared<http::RequestLog>();

  // Replaces and releases the weights of the ranks. Set before `ready` becomes true. Null: the
  // weights never change.
  std::atomic<RankWeights*> weights{nullptr};

  // Sizes of the present layout. `args` and `plan` describe the layout at startup only.
  LayoutSizes sizes() const {
    if (const ElasticRanks* ranks = elastic) return ranks->sizes();
    return {.mesh = args.engine.mesh,
            .num_pages = plan.num_pages,
            .max_running_requests = plan.max_running_requests,
            .chunked_prefill_size = plan.chunked_prefill_size};
  }
  // Limit of the running requests of each attention group, which clients may lower
  // (/set_internal_state).
  int64_t running_limit() const {
    const int64_t most = sizes().max_running_requests, set = front.controls().max_running_requests;
    return set > 0 ? std::min(most, set) : most;
  }
};

}  // namespace switchyard
