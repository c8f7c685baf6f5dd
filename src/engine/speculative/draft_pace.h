// The number of drafts that gives the most tokens per second (--speculative-num-steps auto).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace switchyard {

// The time of a step depends on the number of decoding sequences and on the drafts of each: more
// rows read more experts' weights. The tokens of a step depend on the acceptance. For each size of
// batch, the pace measures the time of a step with some numbers of drafts, including the time of
// drafting, and estimates the time with others. It selects the number with the most expected tokens
// per second, 0 if drafts do not pay. A number that promises more is tried in a few steps. Numbers
// that promise less are tried again after many steps, as long as all such trials take a small share
// of the time.
//
// Used only by the leader's thread, which sends the limit to all ranks.
class DraftPace {
 public:
  static constexpr int kTrialSteps = 4;         // that are measured before numbers are compared
  static constexpr int64_t kRetrySteps = 200;   // at least, between two trials of a batch size
  static constexpr double kTrialShare = 0.005;  // of the time: the most that trials may lose

  explicit DraftPace(int32_t most);

  // Records a step without prompt rows. `sequences`: of all groups. `limit`: the limit under which
  // the step's drafts were proposed, and those of the next step; −1 if the two differ.
  void Observe(int64_t sequences, int32_t limit, double seconds);
  // Records the drafts of a group with `sequences` decoding sequences in the last step. `limit`:
  // the limit under which they were proposed. `accepted`: drafts so far, by position (EngineStats).
  void ObserveDrafts(int64_t sequences, int32_t limit, std::span<const int64_t> accepted);

  // The limit for a step with this many decoding sequences. 0 sequences: the last limit, so an idle
  // time does not change it.
  int32_t Limit(int64_t sequences);

  // The expected tokens of a sequence in a step with this limit.
  double TokensOf(int32_t limit) const;

 private:
  static constexpr int kWindow = 16;
  // The times of a number of drafts. Its time is the mean of the shorter half of the last ones,
  // because other processes only make steps longer.
  struct Arm {
    std::array<double, kWindow> last = {};
    int64_t samples = 0;    // in the current trial, or since the number was selected
    int64_t measured = -1;  // Size::steps at the last sample; −1: never
    double seconds = 0;

    bool known() const { return measured >= 0; }
    void Add(double time, int64_t step);
  };
  struct Size {  // of a batch
    int64_t sequences = 0;
    std::vector<Arm> arms;
    int32_t best = 0, running = 0;  // numbers of drafts; they differ in a trial
    int64_t steps = 0;
    int64_t trial_began = 0;  // at this step, the last one
    double trial_cost = 0;    // seconds lost by it
    int next_retry = 0;       // which neighbour of the best number is tried again next
  };
  Size& SizeOf(int64_t sequences);
  // The measured size nearest to `sequences`; null: none.
  const Size* Nearest(int64_t sequences, const Size* except) const;
  // The seconds of a step: measured, or estimated from other numbers of drafts, or from another
  // size of batch. 0: unknown.
  double SecondsOf(const Size& size, int32_t limit) const;
  double RateOf(const Size& size, int32_t limit) const;
  // The seconds that a step with this limit loses against the best one.
  double LossOf(const Size& size, int32_t limit, double seconds) const;
  void Choose(Size& size);
  // A number of drafts that promises more than the best one.
  std::optional<int32_t> Promising(const Size& size) const;
  // A number of drafts to try although it promises less; nullopt: the trial would take too much.
  std::optional<int32_t> Retry(Size& size) const;
  static void Try(Size& size, int32_t limit);

  const int32_t most_;
  int32_t last_;  // limit
  std::map<int64_t, Size> sizes_;
  double elapsed_ = 0, lost_ = 0;  // seconds of all steps, and of those lost by trials
  // By position: decayed sums over the steps in which a draft at this position was wanted, so that
  // they follow the text. Steps of sequences, and accepted drafts. A draft may be missing, or an
  // earlier one was rejected.
  std::vector<double> wanted_, accepted_;
  std::vector<int64_t> seen_;  // accepted drafts
};

}  // namespace switchyard
