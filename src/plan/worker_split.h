// Plans of prefill and decode workers: servers that compute prompts, and servers that continue them
// (docs/disaggregation.md).
#pragma once

#include <string>
#include <vector>

#include "plan/search.h"

namespace switchyard::plan {

// Layouts and numbers of the workers. A number of 0 is chosen by rate.
struct SplitLayout {
  Layout prefill, decode;
  int prefill_workers = 0, decode_workers = 0;

  // "2xtp4/1xtp8-ep8-deepep": prefill workers, then decode workers.
  std::string Name() const;
};
// Reads what Name writes; numbers may be left out: "tp4/tp8", and are at most 4096. Error
// kInvalid names the part.
SplitLayout ParseSplitLayout(const std::string& name);
// Whether a name has two layouts.
bool IsSplitName(const std::string& name);

// One kind of worker.
struct WorkerPlan {
  Evaluation evaluation;       // memory and cache; its `best` is not set
  std::string engine_refuses;  // why `serve` does not accept it; then the figures are on paper
  int units = 1;               // GPUs of a worker; on CPUs one host
  double requests = 0;         // most requests per second of one worker
  double link = 0;             // bytes per second at which it sends or receives rows of the cache
  // Prefill workers: a full step, its prompt tokens of all groups, and the seconds of one prompt.
  // Decode workers: a step, and its concurrent requests.
  StepTime step;
  double rows = 0, running = 0, alone = 0;
};

struct Split {
  SplitLayout layout;
  std::string refused;  // why it cannot run, or does not meet the load
  WorkerPlan prefill, decode;
  double requests = 0;                       // requests per second of all workers together
  double used_prefill = 0, used_decode = 0;  // fractions of the workers' most requests
  double kv_bytes = 0;                       // of a prompt token, all layers
  double transfer = 0, exposed = 0;          // seconds of a prompt's rows; those after the prompt
  double ttft = 0, itl = 0;                  // seconds
  double per_unit = 0, per_node = 0, cost = 0;  // output tokens/s; per million output tokens
  int units() const {
    return prefill.units * layout.prefill_workers + decode.units * layout.decode_workers;
  }
};

// The model of the figures:
//   - A prefill worker computes full steps of prompts, and sends the rows of its cache meanwhile,
//     layer by layer. So its rate is the smaller one of its steps and of its link.
//   - A decode worker runs decode steps only, so the time between tokens is that of a step.
//   - TTFT is the time of the prompt alone, the wait for other prompts (as in a queue with constant
//     service times), and the part of the transfer that ends after the prompt.
//   - The numbers of workers follow from the rates of both kinds: without a rate, they maximize the
//     rate of the whole cluster; with a rate, they take the fewest devices that sustain it.
// On CPUs each worker has a host of its own. Error kInvalid for a load with `batch`, and for CPUs
// with one node.
Split EvaluateSplit(const Question& question, const SplitLayout& layout);
// The best splits over all layouts of one pipeline stage, best first. `numbers`: 0 or fixed.
// Errors as from Search.
std::vector<Split> SearchSplits(const Question& question, const SplitLayout& numbers);

std::string SplitReport(const Question& question, const std::vector<Split>& ranked, int rows);
std::string SplitJson(const Question& question, const std::vector<Split>& ranked);
// The questions of the decision tree for both kinds of workers.
std::string ExplainSplit(const Question& question, const SplitLayout& layout);
// The commands of the prefill workers, of the decode workers and of the router.
std::string SplitCommands(const Question& question, const Split& split);

}  // namespace switchyard::plan
