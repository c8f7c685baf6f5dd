// The number of drafts that gives the most tokens per second (--speculative-num-steps auto).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace switchyard {

// The time of a step depends on the number of decoding sequences and on the drafts of each: more
// rows read more experts' weights. The tokens of a step depend on the acceptance. For each size of
// batch, the pace measures the time of a step with each number of drafts that may pay, including
// the time of drafting. It then selects the number with the most expected tokens per second, 0 if
// drafts do not pay. Later it measures the neighbours of this number again, in a few of many steps.
//
// Used only by the leader's thread, which sends the limit to all ranks.
class DraftPace {
 public:
  static constexpr int kTrialSteps = 3;        // that are measured before numbers are compared
  static constexpr int64_t kRetrySteps = 400;  // between two trials of a batch size

  explicit DraftPace(int32_t most);

  // The outcome of drafts so far (EngineStats).
  struct Drafts {
    int64_t verify_steps = 0;
    std::span<const int64_t> verified, accepted;  // by position
  };
  // Records a step without prompt rows. `sequences`: of all groups. `limit`: the limit under which
  // the step's drafts were proposed, and those of the next step; −1 if the two differ.
  void Observe(int64_t sequences, int32_t limit, double seconds);
  // Records the drafts of a group with `sequences` decoding sequences in the last step.
  void ObserveDrafts(int64_t sequences, const Drafts& so_far);

  // The limit for a step with this many decoding sequences.
  int32_t Limit(int64_t sequences);

  // The expected tokens of a sequence in a step with this limit.
  double TokensOf(int32_t limit) const;

 private:
  struct Arm {
    double seconds = 0;  // of a step; 0: unknown
    int samples = 0;     // of the current trial
  };
  struct Size {  // of a batch
    std::vector<Arm> arms;
    int32_t best = 0, running = 0;  // numbers of drafts
    int64_t steps = 0;              // since the last trial
    bool upward = true;             // the direction of the next trial
  };
  Size& SizeOf(int64_t sequences);
  double RateOf(const Size& size, int32_t limit) const;
  void Choose(Size& size);

  const int32_t most_;
  std::map<int64_t, Size> sizes_;
  // Decayed sums over steps, so that the acceptance follows the text.
  std::vector<double> verified_, accepted_;      // by position
  double sequence_steps_ = 0, with_drafts_ = 0;  // of sequences, and of those with drafts
  std::vector<int64_t> seen_verified_, seen_accepted_;
  int64_t seen_steps_ = 0;
};

}  // namespace switchyard
