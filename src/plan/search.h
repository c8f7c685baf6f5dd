// Evaluates layouts of a model on a cluster, and ranks them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/memory_plan.h"
#include "plan/layout.h"
#include "plan/layout_costs.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

// The load of the cluster, and its limits. At most one of `batch` and `rate` may be set. With
// neither, the concurrency with the highest throughput within the limits is chosen.
struct Load {
  int64_t input = 1024, output = 512;
  double rate = 0;         // requests per second of the whole cluster
  double batch = 0;        // concurrent requests of the whole cluster
  double max_ttft = 0;     // seconds; 0: no limit
  double max_itl = 0;      // seconds; 0: no limit
  double imbalance = 1.1;  // see Routing
  double correlation = 0;  // see Routing
  double price = 0;        // price of a device per hour; 0: unknown
};

struct Question {
  EngineConfig config;  // flags that all layouts share; its backends may be set
  ModelConfig model;
  Cluster cluster;
  CostTable table;
  Load load;
  int stages = 0;  // pipeline stages of the layouts of a search; see EnumerateLayouts
};

// A number of concurrent requests of one engine, in a steady state.
struct Point {
  double running = 0;        // concurrent requests of one engine
  StepTime prefill, decode;  // one full prefill step; one token of each request
  double prefill_rows = 0;   // rows of that step, all groups
  double prefill_rate = 0;   // prompt tokens per second of one engine, while it prefills
  double output_rate = 0;    // tokens per second of one engine, in the steady state
  double ttft = 0, itl = 0;  // seconds
  double requests = 0;       // requests per second of one engine
};

// What a rank of a pipeline stage holds.
struct StageMemory {
  schedule::LayerRange layers;
  RankMemory memory;
  double cache = 0;  // bytes
  double total() const { return memory.fixed() + cache; }
};

struct Evaluation {
  Layout layout;
  std::string refused;  // why the engine does not accept it, or why it does not meet the load
  ErrorKind refusal = ErrorKind::kInvalid;  // of the engine; kResource: too little memory
  bool accepted = false;  // whether the engine accepts it: it fits, and all flags are valid
  int replicas = 1;
  EnginePlan plan;
  std::vector<StageMemory> stages;  // at least one, if the engine accepts the layout
  double memory_total = 0;          // bytes of the device, or of the host
  double cache_tokens = 0;          // tokens in the cache of one engine
  double longest_context = 0;       // tokens of one request
  double most_requests = 0;         // maximum concurrent requests in the cache of one engine
  std::vector<Point> points;        // ascending concurrency, as far as the cache allows
  std::optional<Point> best;        // the best point within the load and the limits
  double per_device = 0;            // output tokens per second per device; on CPUs: per host
  double cost = 0;                  // cost of a million output tokens; 0: unknown
  std::string binds;                // what limits the best point, in words

  // The stage whose ranks need the most memory.
  const StageMemory& largest() const;
};

// The memory and the cache of one layout, without its steps. A layout that the engine refuses has
// the reason in `refused`.
Evaluation Admit(const Question& question, const Layout& layout);
// One layout. A layout that the engine refuses has the reason in `refused`, and no points.
Evaluation Evaluate(const Question& question, const Layout& layout);
// All layouts, best first; refused ones last. If no layout fits, an Error kResource states what
// would be needed. If the engine accepts none for other reasons, an Error kInvalid has the first
// reason. If none meets the limits, an Error kInvalid states what is reachable.
std::vector<Evaluation> Search(const Question& question);

}  // namespace switchyard::plan
