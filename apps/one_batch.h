// The parts of `switchyard bench one-batch`: its cases, reports of their times and memory, and
// steps with drafts.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "engine/config.h"
#include "engine/expert_services.h"
#include "moe/router/routing_observer.h"
#include "plan/decode_bound.h"
#include "server/args/args.h"

namespace switchyard::one_batch {

struct Case {
  int32_t batch = 1, input = 512;
};

struct Result {
  // Seconds of each run: prefill of the whole batch, and the median decode step.
  std::vector<double> prefill, decode;
  // Of the experts of two tokens of a prompt (plan::TokenCorrelation), counted in one prompt.
  double correlation = 0;
  plan::ChosenExperts chosen;  // with --expert-ranks: of decode steps
  // With --expert-ranks: times of the MoE layers of the first rank with experts only, summed over
  // the layers of each decode step.
  std::vector<MoeTimes> parts;
};

// Sums the times of a rank's MoE layers.
class LayerParts : public RoutingObserver {
 public:
  void OnPlacement(int /*layer*/, const ExpertPlacement& /*placement*/) override {}
  void OnRoute(uint64_t /*pass*/, int /*layer*/, const RoutedTokens& /*tokens*/) override {}
  void OnTimes(uint64_t /*pass*/, const MoeTimes& times) override { sum_ += times; }
  // The sum since the last call.
  MoeTimes Take() { return std::exchange(sum_, {}); }

 private:
  MoeTimes sum_;
};

double Median(std::vector<double> v);

// Peak rates of all ranks together, measured in this run; 0: unknown. On GPUs `bandwidth` and
// `flops` are those of the GPUs. With --expert-ranks, `attending` and `others` are the rates at
// which ranks with attention and ranks with experts only read memory, each measured alone.
struct Ceilings {
  double bandwidth = 0.0, flops = 0.0;
  double attending = 0.0, others = 0.0;
};
Ceilings Measure(const EngineConfig& config, const EnginePlan& plan);

// Bytes of weights on all ranks together. A pass reads `dense` (without the embedding, of which it
// reads only some rows) and the routed experts that its rows choose.
struct PassWeights {
  double dense = 0, expert = 0;  // expert: one routed expert of one layer
  double moe_layers = 0;
};
PassWeights WeightsOfPass(const ModelConfig& config);
// The number of experts of a MoE layer that `rows` rows choose, expected of uniform routing.
double ExpectedExperts(const ModelConfig& config, double rows);

// Maximum prompt rows of one prefill step, as in the scheduler.
int32_t PrefillRows(const EnginePlan& plan, const Case& c);

// Checks that --cost-table, if given, can be read and is for this kind of device and model.
void CheckCostTable(const OneBatchArgs& args, const EnginePlan& plan);

// Prints the times that the cost model of `switchyard plan` predicts for the cases, and their
// differences from the measured times. Adds both to the objects of `rows`, one for each case.
// Prints only the reason if there are no costs of this device or model.
void ReportPredictions(const OneBatchArgs& args, const EngineConfig& config, const EnginePlan& plan,
                       const std::vector<Case>& cases, const std::vector<Result>& results,
                       nlohmann::ordered_json& rows);

// Ranks with attention and ranks with experts only (--expert-ranks), which read weights at once.
// Functions of one_batch_split.cc.

// [layers, experts] whether a rank with attention holds the expert now (plan::HeldByAttending).
std::vector<bool> HeldByAttending(const EngineConfig& config, const EnginePlan& plan,
                                  const ExpertServices& experts);
// The bound of a decode step of this case. Empty without --expert-ranks, and if the experts that
// the ranks read are not known, because another --ep-dispatch-algorithm than static chooses copies.
std::optional<plan::SplitBound> SplitBoundOf(const EngineConfig& config, const EnginePlan& plan,
                                             const Result& result, const Ceilings& ceilings);
void PrintRates(const EngineConfig& config, const EnginePlan& plan, const Ceilings& ceilings);
// Prints the bound of each case, the fraction of it that the measured steps reach, and the bounds
// of this placement and of whole layers if layers run one after another. Adds them to the objects
// of `rows`, one for each case.
void ReportSplit(const OneBatchArgs& args, const EngineConfig& config, const EnginePlan& plan,
                 const std::vector<Case>& cases, const std::vector<Result>& results,
                 const Ceilings& ceilings, nlohmann::ordered_json& rows);
// Prints what the first rank with experts only does in a decode step, by its clock, and adds it to
// the objects of `rows`.
void ReportParts(const EngineConfig& config, const std::vector<Case>& cases,
                 const std::vector<Result>& results, nlohmann::ordered_json& rows);

// `bench one-batch --speculative-algorithm`: times decode steps with and without drafts.
int RunDrafts(const OneBatchArgs& args);

// Reads the memory of all ranks between the stages of a run. On CPUs this is the resident memory of
// the process. On GPUs it is the free memory of each rank's GPU, so it includes other processes.
class MemoryWatch {
 public:
  // The stages, which end when Ended is called.
  enum Stage : uint8_t { kStart, kLoading, kCache, kSteps, kStages };

  // Made before the ranks start. `config` and `plan` must outlive it.
  MemoryWatch(const EngineConfig& config, const EnginePlan& plan);
  // Called by every rank. Waits for all ranks of `world` before and after it reads the memory.
  void Ended(Stage stage, int rank, Communicator& world);
  // Prints planned and measured memory, after the ranks have ended.
  void Report() const;

 private:
  void ReportHost() const;
  void ReportGpus() const;

  const EngineConfig& config_;
  const EnginePlan& plan_;
  // Bytes by rank and stage: resident bytes, or free bytes of a GPU.
  std::vector<std::array<int64_t, kStages>> bytes_;
};

}  // namespace switchyard::one_batch
