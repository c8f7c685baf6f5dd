// Simulates requests on the ranks of a layout, at one of two fidelities.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plan/engine_experts.h"
#include "plan/engine_step.h"
#include "plan/failures.h"
#include "plan/search.h"

namespace switchyard::plan {

struct Arrival {
  double seconds = 0;  // arrival time since the start
  int64_t input = 0, output = 0;
  // Texts of the prompt's leading blocks, from a trace: equal numbers are equal texts. Prompts
  // share a prefix as far as their blocks are equal.
  static constexpr int64_t kBlockTokens = 512;
  std::vector<uint32_t> blocks = {};
};

// Poisson arrivals of equal requests. The same seed gives the same arrivals. Error kInvalid for
// more than 10^9 expected requests.
std::vector<Arrival> PoissonArrivals(const Load& load, double rate, double seconds, uint64_t seed);
// A trace: lines of JSON with timestamp (ms), input_length, output_length and optionally hash_ids
// (Mooncake), or CSV with columns TIMESTAMP, ContextTokens and GeneratedTokens (Azure). Error
// kInvalid names the file and line.
std::vector<Arrival> ReadArrivals(const std::filesystem::path& file);

enum class Fidelity : uint8_t {
  // The time of a step is computed once for each shape (ShapeClock). A simulated day of a large
  // cluster takes minutes.
  kStep,
  // Every operation of every rank of every step is simulated (EngineStep): seconds of a large
  // cluster.
  kOperation,
};
// "step", "operation". Error kInvalid names --fidelity.
Fidelity ParseFidelity(const std::string& name);

struct SimulationOptions {
  Fidelity fidelity = Fidelity::kStep;
  ExpertLoadOptions expert_loads;  // not enabled: Routing applies
  FailureOptions failures;
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

struct Simulation {
  int64_t requests = 0, steps = 0;  // steps: with pipeline stages, passes
  double seconds = 0;               // time until the last request has ended
  double output_rate = 0;           // tokens per second of the cluster
  // Fraction of the time in which an engine runs steps, mean over engines. With pipeline stages: in
  // which a stage runs passes, mean over stages and engines.
  double busy = 0;
  // With pipeline stages: that fraction for each stage, mean over engines. Else empty.
  std::vector<double> stage_busy;
  int64_t most_in_flight = 0;  // with pipeline stages: maximum number of passes in flight
  // Mean number of running requests of the cluster, weighted by the times of the steps.
  double running = 0;
  // Fraction of (group, step) pairs in which the group has no rows, but another group has rows.
  double uneven = 0;
  int64_t cached_tokens = 0;  // prompt tokens that were in the prefix cache
  int64_t lost = 0;           // requests that have not ended
  // Maximum number of requests of an engine that wait for their first step.
  int64_t most_waiting = 0;
  Percentiles ttft, itl, latency;
  // Steps of the first engine: start, seconds, prompt rows, decode rows; at most `kKeptSteps`. With
  // pipeline stages: each pass in each of its stages, in order of passes.
  struct Step {
    double start, seconds;
    int64_t prompt_rows, decode_rows;
    int stage = 0;
  };
  static constexpr size_t kKeptSteps = 20'000;
  std::vector<Step> first_engine;
  // With Fidelity::kOperation: all operations of the first steps of the first engine, in seconds of
  // the simulation; no further step after kKeptOperations.
  static constexpr size_t kKeptOperations = 50'000;
  std::vector<OperationSpan> operations;

  // With expert loads. Imbalance and balancedness are means of all engines; the rest is of the
  // first engine.
  std::string expert_loads;  // ExpertLoadOptions::source
  ExpertFigures experts;
  int64_t rebalances = 0;  // of all engines
  double moved_bytes = 0;

  // With failures. The pauses are those of the first engine.
  std::string recovery;  // in words
  FailureFigures failures;
  struct Pause {
    double start = 0, seconds = 0;
    std::string reason;
  };
  std::vector<Pause> pauses;
};

// Requests go to engines and their groups in turn. All groups of an engine step together. Prompts
// run in chunks, which PrefillPace limits while requests decode. Each group has the engine's
// scheduler and prefix cache (RequestQueue). With Fidelity::kStep, without failures, the cache is
// off if no prompts of the trace share blocks. With pipeline stages, several passes are in flight
// (StagedRun). Error kInvalid for a request that the cache cannot hold, for a layout that is not
// accepted, and for the options: expert loads and failures are not simulated with pipeline stages.
Simulation Simulate(const Question& question, const Evaluation& layout,
                    const std::vector<Arrival>& arrivals, const SimulationOptions& options = {});

std::string SimulationText(const Evaluation& layout, const Simulation& simulation);
// A Chrome trace of the first engine: its steps, pauses and rebalances (process 0), the
// balancedness of its experts (a counter), and the operations of each rank (process 1, a thread for
// each rank).
std::string SimulationTrace(const Simulation& simulation);
// An SVG of the first engine as far as Simulation::first_engine goes: the fractions of time in
// steps with and without prompts and in pauses, decoding requests, and balancedness.
std::string SimulationPicture(const Evaluation& layout, const Simulation& simulation);

}  // namespace switchyard::plan
