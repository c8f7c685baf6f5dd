// The command lines of `switchyard plan` and `switchyard simulate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"

namespace switchyard {

// `engine` has the flags that all layouts share.
struct PlanArgs {
  EngineConfig engine;
  std::string revision = "main";
  std::string card;  // name of the GPU in --gpus; empty: CPUs
  int per_node = 0, nodes = 1;
  int nics = 0;  // --nics: NICs per node
  double nic_gbit = 0;
  int cpus = 0;  // --cpus; 0: the CPUs that this process may use
  // --memory: of each GPU, or of the host; 0: that of the card, or of this host.
  double memory_gib = 0;
  int stages = 0;                          // --pp-size; 0: any number
  bool disaggregate = false;               // --disaggregate
  int prefill_workers = 0;                 // --prefill-workers; 0: chosen
  int decode_workers = 0;                  // --decode-workers; 0: chosen
  std::string cost_table;                  // --cost-table FILE
  int64_t input = 1024, output = 512;      // --input-len, --output-len
  double rate = 0, batch = 0;              // --rate, --batch
  double max_ttft_ms = 0, max_itl_ms = 0;  // --slo-ttft, --slo-itl
  double imbalance = 1.1;                  // --imbalance
  double correlation = 0;                  // --token-correlation
  double price = 0;                        // --price: per hour of a GPU or host
  bool cpu_experts = false;                // --cpu-experts
  double host_memory_gib = 0;              // --host-memory; 0: that of this host
  double link_gbs = 25;                    // --link-gbs, in 10^9 bytes per second
  int64_t cache_tokens = 16384;            // --cache-tokens
  std::string expert_loads = "zipf:1";     // --expert-loads, with --cpu-experts
  std::string cpu_cost_table;              // --cpu-cost-table FILE
  std::string explain;                     // --explain LAYOUT
  std::string svg;                         // --svg FILE; also of simulate
  bool json = false;                       // --json
  int rows = 12;                           // --top: rows of the table
};

// Arguments of `simulate` in addition to the model, the cluster and the load.
struct SimulateArgs {
  PlanArgs plan;
  std::string layout;             // --layout; empty: the first of the plan
  std::string trace;              // --trace FILE; empty: Poisson arrivals with --rate
  double seconds = 60;            // --seconds: duration of Poisson arrivals
  uint64_t seed = 0;              // --seed
  std::string fidelity = "step";  // --fidelity
  std::string chrome_trace;       // --chrome-trace FILE
  int32_t redundant = 0;          // --ep-num-redundant-experts; 0: that of the layout
  std::string expert_loads;       // --expert-loads; empty: equal loads
  double drift_seconds = 0;       // --expert-drift
  std::vector<std::string> fail;  // --fail RANK@SECONDS ...
  double fail_rate = 0;           // --fail-rate: per rank and day
  double restart_seconds = 0;     // --restart-seconds
};

// For --help, prints the help and returns nothing. Throws Error kInvalid that names the flag.
std::optional<PlanArgs> ParsePlan(const std::vector<std::string>& args);
std::optional<SimulateArgs> ParseSimulate(const std::vector<std::string>& args);

}  // namespace switchyard
