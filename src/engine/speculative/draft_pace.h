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
// drafting, and estimates the time with others. It selects the number with the highest expected
// tokens per second, 0 if drafts are not faster. A number with a higher expected rate is tried in a
// few steps. Numbers with a lower expected rate are tried again after many steps, as long as such
// trials take a small share of the time.
//
// Used only by the leader's thread, which sends the limit to all ranks.
class DraftPace {
 public:
  static constexpr int kTrialSteps = 4;         // measured steps before numbers are compared
  static constexpr int64_t kRetrySteps = 200;   // minimum between two trials of a batch size
  static constexpr double kTrialShare = 0.005;  // maximum share of the time lost by trials

  explicit DraftPace(int32_t most);

  // Records a step without prompt rows. `sequences`: decoding sequences of all groups. `limit`: the
  // limit for the step's drafts, if the drafts of the next step have the same limit; −1 if not.
  void Observe(int64_t sequences, int32_t limit, double seconds);
  // Records the drafts of a group with `sequences` decoding sequences in the last step. `limit`:
  // the limit under which they were proposed. `accepted`: accepted drafts so far, by position
  // (EngineStats).
  void ObserveDrafts(int64_t sequences, int32_t limit, std::span<const int64_t> accepted);

  // The limit for a step with this many decoding sequences. 0 sequences: the last limit, so an idle
  // time does not change it.
  int32_t Limit(int64_t sequences);

  // The expected number of tokens of a sequence in a step with this limit.
  double TokensOf(int32_t limit) const;

 private:
  static constexpr int kWindow = 16;
  // The last times of steps with a certain number of drafts, and their mean. Chains that end early
  // make some steps shorter, so all times count. But times above twice the median count as
  // twice the median, because other processes make a few steps much longer.
  struct Arm {
    std::array<double, kWindow> last = {};
    int64_t samples = 0;    // measurements in the trial, or since the selection
    int64_t measured = -1;  // Size::steps at the last sample; −1: never
    double seconds = 0;

    bool known() const { return measured >= 0; }
    void Add(double time, int64_t step);
  };
  struct Size {  // measurements for batches of about `sequences` sequences
    int64_t sequences = 0;
    std::vector<Arm> arms;
    int32_t best = 0, running = 0;  // numbers of drafts; they differ in a trial
    int64_t steps = 0;
    int64_t trial_began = 0;  // Size::steps at the start of the last trial
    double trial_cost = 0;    // seconds lost by that trial
    int next_retry = 0;       // selects the neighbour of the best number for the next retry
  };
  Size& SizeOf(int64_t sequences);
  // The measured batch size nearest to `sequences`, other than `except`; null: none.
  const Size* Nearest(int64_t sequences, const Size* except) const;
  // The seconds of a step: measured, or estimated from other numbers of drafts, or from another
  // size of batch. 0: unknown.
  double SecondsOf(const Size& size, int32_t limit) const;
  double RateOf(const Size& size, int32_t limit) const;
  // The rate by which numbers of drafts are compared. That of drafts is a little lower than RateOf,
  // because the estimates have errors, and drafts must not be slower than plain steps.
  double WorthOf(const Size& size, int32_t limit) const;
  // The seconds that a step with this limit loses against the best one.
  double LossOf(const Size& size, int32_t limit, double seconds) const;
  void Choose(Size& size);
  // A number of drafts with a higher expected rate than the best one.
  std::optional<int32_t> Promising(const Size& size) const;
  // A number of drafts to try despite a lower expected rate; nullopt: the trial would take too much
  // time.
  std::optional<int32_t> Retry(Size& size) const;
  static void Try(Size& size, int32_t limit);

  const int32_t most_;
  int32_t last_;  // the limit that Limit returned last
  std::map<int64_t, Size> sizes_;
  double elapsed_ = 0, lost_ = 0;  // seconds of all steps, and of those lost by trials
  // By position: sums over the steps in which a draft at this position was wanted; old steps have
  // less weight, so the sums adapt to the text. `wanted_` counts these steps, `accepted_` the
  // accepted drafts. A wanted draft that was not proposed, or that follows a rejected draft, counts
  // as not accepted.
  std::vector<double> wanted_, accepted_;
  std::vector<int64_t> seen_;  // accepted drafts by position at the last ObserveDrafts
};

}  // namespace switchyard
