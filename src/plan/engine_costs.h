// The times of an engine's steps on the machine that it runs on, predicted by the cost model of
// `switchyard plan`.
#pragma once

#include <cstdint>
#include <string>

#include "plan/search.h"

namespace switchyard::plan {

// A batch of equal requests that are prefilled together and then decoded together, as
// `switchyard bench one-batch` runs it.
struct EqualRequests {
  int64_t batch = 1, input = 1, output = 1;  // requests; tokens of each
  int64_t chunk = 1;                         // maximum prompt rows of a prefill step
};

class EngineCosts {
 public:
  // `plan`: the result of MakePlan for `config`, with one attention group. `table`: the rates of
  // one GPU, or of the CPUs of all ranks of this host. Experts are assumed to be equally popular.
  // `correlation`: Routing::correlation, as TokenCorrelation counts it.
  EngineCosts(const EngineConfig& config, const EnginePlan& plan, CostTable table,
              double correlation = 0);
  EngineCosts(const EngineCosts&) = delete;

  // Seconds. The prompts of all requests; a step holds as many whole prompts as fit, and longer
  // prompts are divided into chunks.
  double Prefill(const EqualRequests& requests) const;
  // The decode step in the middle of the output.
  double DecodeStep(const EqualRequests& requests) const;

 private:
  const Question question_;  // costs_ refers to its model
  const LayoutCosts costs_;
};

}  // namespace switchyard::plan
