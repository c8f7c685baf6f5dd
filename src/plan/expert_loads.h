// Which experts the tokens of a simulation choose.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "eplb/types.h"
#include "model/config.h"

namespace switchyard::plan {

struct ExpertLoadOptions {
  // --expert-loads: "uniform", "zipf:EXPONENT", or a file with recorded loads (ReadLoads in
  // eplb/array_file.h). Empty: all ranks have equal loads (Routing).
  std::string source;
  // --expert-drift: in this number of seconds, each expert of a Zipf router exchanges its
  // popularity with another one, once on average; at least 0.001. 0: never.
  double drift_seconds = 0;
  uint64_t seed = 0;

  bool enabled() const { return !source.empty(); }
};

// Immutable, shared by the engines of a simulation.
class ExpertLoads {
 public:
  // Error kInvalid names --expert-loads: a source of another form, a file that is not a recording,
  // or a recording of other layers or experts than those of the model; or it names --expert-drift.
  // kNotFound as ArrayFile. A recording has the model's MoE layers, or all its layers, or one
  // layer, which then applies to all.
  ExpertLoads(const ExpertLoadOptions& options, const ModelConfig& model);

  int layers() const { return layers_; }  // MoE layers
  int experts() const { return experts_; }
  double top_k() const { return top_k_; }
  uint64_t seed() const { return seed_; }
  double drift_seconds() const { return recorded_.steps > 0 ? 0 : drift_seconds_; }
  // [experts] the expected fraction of tokens that choose the expert of this popularity, most
  // popular first; they sum to top_k. Not for recordings.
  std::span<const double> of_rank() const { return of_rank_; }
  const LoadHistory& recorded() const { return recorded_; }  // no steps: a Zipf router

 private:
  int layers_ = 0, experts_ = 0;
  double top_k_ = 0, drift_seconds_ = 0;
  uint64_t seed_ = 0;
  std::vector<double> of_rank_;
  LoadHistory recorded_;
};

// The popularity of experts in one engine as time passes. Engines of equal seeds have equal ones.
//
// Zipf router: the weight of the n-th popular expert is n^−exponent. Each layer has a random order
// of popularity. A token chooses top_k different experts; expert e is among them with probability
// 1 − exp(−τ w_e), where τ makes the probabilities sum to top_k (successive sampling, Rosén 1972).
// Recording: step i of the simulation has the loads of recorded step i, and begins again at the
// end.
class ExpertPopularity {
 public:
  explicit ExpertPopularity(std::shared_ptr<const ExpertLoads> loads);

  // Sets the time and the number of the next step. Neither decreases. Returns whether the
  // popularity has changed.
  bool Advance(double seconds, int64_t step);
  // Copies the expected fraction of tokens that choose each expert to `to` [experts].
  void Get(int layer, std::span<double> to) const;
  // When the popularity changes next, and for how many steps it stays; at least 1.
  double next_change() const { return next_change_; }
  int64_t equal_steps() const;
  // Equal numbers are equal popularities of this object.
  int64_t version() const { return version_; }

 private:
  void Exchange();
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  const std::shared_ptr<const ExpertLoads> loads_;
  std::mt19937_64 random_;
  std::vector<int32_t> rank_of_;  // [layers, experts] 0: the most popular expert
  double next_change_ = std::numeric_limits<double>::infinity();
  int64_t version_ = 0;  // of a recording: the recorded step
};

}  // namespace switchyard::plan
