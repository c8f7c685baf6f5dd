// The times of an engine's steps in a simulation, at two fidelities.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/engine_step.h"
#include "plan/search.h"

namespace switchyard::plan {

// The rows of an attention group in a step.
struct GroupRows {
  int64_t prompt = 0, decode = 0;  // rows of prompts, and decoding sequences
  int64_t prompt_keys = 0;         // keys that a prompt row attends to, on average
  int64_t decode_keys = 0;         // keys of all decoding sequences together

  int64_t rows() const { return prompt + decode; }
};

class StepClock {
 public:
  virtual ~StepClock() = default;
  // Seconds of a step. `groups` [dp]; at least one group has rows. `loads`: the rows of experts of
  // the EP ranks, all from one engine; null: equal ones.
  virtual double Seconds(std::span<const GroupRows> groups, const ExpertShares* loads) = 0;
  double Seconds(std::span<const GroupRows> groups) { return Seconds(groups, nullptr); }
  // For how many steps like this one, without prompts and with one more key in each sequence each
  // time, the time stays the same; at least 1.
  virtual int64_t EqualSteps(std::span<const GroupRows> groups) const = 0;
};

// Fidelity "step": the group with the most rows determines the time. Sizes are rounded by at
// most 1.6 %, and the time of each shape is computed once.
class ShapeClock : public StepClock {
 public:
  // With pipeline stages: the clock of one of them.
  explicit ShapeClock(const LayoutCosts& costs, int stage = 0) : costs_(costs), stage_(stage) {}
  using StepClock::Seconds;
  double Seconds(std::span<const GroupRows> groups, const ExpertShares* loads) override;
  int64_t EqualSteps(std::span<const GroupRows> groups) const override;

 private:
  struct Key {
    int64_t prompt, decode, prompt_keys, keys, mean;
    int64_t version;  // of ExpertShares; −1: none
    bool decodes;     // no group has prompts
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  static Key KeyOf(std::span<const GroupRows> groups, const ExpertShares* loads);

  const LayoutCosts& costs_;
  const int stage_;
  std::unordered_map<Key, double, Hash> known_;
};

// Fidelity "operation": EngineStep with the rows of each group.
class OperationClock : public StepClock {
 public:
  // With pipeline stages: the clock of one of them. Its operations have the ranks and layers of the
  // stage, from 0.
  explicit OperationClock(const LayoutCosts& costs, int stage = 0)
      : engine_(costs.steps(/*decode=*/false, stage), costs.steps(/*decode=*/true, stage)) {}
  using StepClock::Seconds;
  double Seconds(std::span<const GroupRows> groups, const ExpertShares* loads) override;
  int64_t EqualSteps(std::span<const GroupRows>) const override { return 1; }
  // Appends the operations of the next steps to *spans. Null: does not.
  void Record(std::vector<OperationSpan>* spans) { spans_ = spans; }

 private:
  EngineStep engine_;
  std::vector<StepShape> shapes_;
  std::vector<OperationSpan>* spans_ = nullptr;
};

// The shape of a step of a group. `decode`: no group has prompts. `mean_rows` as in StepShape.
StepShape ShapeOf(const GroupRows& rows, bool decode, double mean_rows);

}  // namespace switchyard::plan
