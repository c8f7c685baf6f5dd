#include "train/run/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "core/error.h"
#include "train/optimizer/adamw.h"

namespace switchyard::train {
namespace {

// Pause between two attempts to write the last checkpoint.
constexpr std::chrono::seconds kPause{5};

void Check(const TrainerOptions& options) {
  CheckSchedule(options.schedule);
  if (options.rows_per_step < 1 || options.rows_per_pass < 1) {
    throw Invalid("--rows-per-step {} and --rows-per-pass {}: want at least 1",
                  options.rows_per_step, options.rows_per_pass);
  }
  if (!(options.clip >= 0)) throw Invalid("--clip-grad-norm {}: want 0 or more", options.clip);
}

}  // namespace

Trainer::Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options,
                 Collectives* all, ThreadPool& pool)
    : Trainer(model, corpus, options,
              {.all = all,
               .part = all == nullptr ? 0 : all->rank(),
               .parts = all == nullptr ? 1 : all->size()},
              pool) {}

Trainer::Trainer(TrainedModel& model, Corpus& corpus, const TrainerOptions& options,
                 const TrainerRanks& ranks, ThreadPool& pool)
    : model_(model),
      corpus_(corpus),
      options_(options),
      ranks_(ranks),
      pool_(pool),
      catalog_(model.Parameters(), ranks.all, ranks.tp),
      adam_(model.Parameters(), options.adam) {
  Check(options_);
  options_.files.aliases = model.Aliases();
  state_.corpus = corpus.fingerprint();
}

void Trainer::Resume(const std::filesystem::path& checkpoint) {
  TrainerState state = LoadCheckpoint(checkpoint, catalog_, &adam_);
  if (state.corpus != corpus_.fingerprint()) {
    throw Error(
        ErrorKind::kInvalid,
        fmt::format("{}: this checkpoint was trained on another corpus, or on the same "
                    "corpus with other packing, shuffling or given experts (--routing-replay) "
                    "(fingerprint {}, now {})",
                    checkpoint.string(), state.corpus, corpus_.fingerprint()),
        "start a new run from its weights instead");
  }
  if (state.step > options_.schedule.steps) {
    throw Invalid("{}: is at step {}, but the run has only {} steps", checkpoint.string(),
                  state.step, options_.schedule.steps);
  }
  state_ = std::move(state);
  saved_step_ = state_.step;
}

Losses Trainer::SumOverRanks(const Losses& mine) {
  if (ranks_.all == nullptr) return mine;
  std::vector<Losses> each(static_cast<size_t>(ranks_.all->size()));
  ranks_.all->AllGatherV(&mine, each.data(), std::vector<size_t>(each.size(), sizeof mine));
  Losses sum;
  for (const Losses& losses : each) sum += losses;
  return sum;
}

bool Trainer::AnyRank(bool mine) {
  if (ranks_.all == nullptr) return mine;
  const uint8_t flag = mine ? 1 : 0;
  std::vector<uint8_t> flags(static_cast<size_t>(ranks_.all->size()));
  ranks_.all->AllGatherV(&flag, flags.data(), std::vector<size_t>(flags.size(), 1));
  return std::ranges::count(flags, 1) > 0;
}

StepReport Trainer::Step() {
  const auto begin = std::chrono::steady_clock::now();
  SamplePosition position = state_.position;
  const std::vector<Row> rows = corpus_.Take(options_.rows_per_step, &position);
  StepReport report{.step = state_.step + 1};
  // Every rank has all rows of the step in memory, so it computes the sizes of the whole step
  // without communication.
  StepSize size{.targets = 0, .tokens = 0};
  for (const Row& row : rows) {
    Batch batch;
    AppendRow(corpus_.documents(), row, &batch);
    report.tokens += batch.size();
    size.targets +=
        static_cast<double>(batch.size() - std::ranges::count(batch.targets, Batch::kIgnored));
  }
  size.tokens = static_cast<double>(report.tokens);
  size.targets = std::max(size.targets, 1.0);  // a step may have no target

  const auto total = static_cast<int64_t>(rows.size());
  const int64_t per_pass = options_.rows_per_pass * ranks_.parts;
  std::vector<Batch> batches(static_cast<size_t>((total + per_pass - 1) / per_pass));
  for (size_t i = 0; i < batches.size(); ++i) {
    const RowRange range =
        RowsOfMicroBatch(total, static_cast<int64_t>(i), static_cast<int64_t>(batches.size()),
                         ranks_.part, ranks_.parts);
    for (int64_t r = range.begin; r < range.end; ++r) {
      AppendRow(corpus_.documents(), rows[static_cast<size_t>(r)], &batches[i]);
    }
  }
  report.losses = SumOverRanks(model_.Learn(batches, size));
  model_.SumGradients();
  const GradientNorm gradient = NormOfGradients(catalog_, pool_);
  if (!std::isfinite(report.losses.total()) || !gradient.not_finite.empty()) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("step {}: the loss is {}{}", report.step, report.losses.total(),
                            gradient.not_finite.empty()
                                ? std::string()
                                : ", the gradient of " + gradient.not_finite + " is not finite"),
                saved_step_ ? "the last good checkpoint is " +
                                  CheckpointPath(options_.output, *saved_step_).string()
                            : "there is no checkpoint yet");
  }
  report.gradient_norm = gradient.norm;
  report.rate = LearningRate(options_.schedule, state_.step);
  adam_.Step(report.rate, ClipScale(gradient.norm, options_.clip), pool_);
  report.figures = model_.AfterStep(RateFraction(options_.schedule, state_.step));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  state_.position = position;
  state_.step = report.step;
  state_.tokens += report.tokens;
  state_.seconds += report.seconds;
  return report;
}

void Trainer::Save() {
  SaveCheckpoint(CheckpointPath(options_.output, state_.step), catalog_, &adam_, state_,
                 options_.files);
  saved_step_ = state_.step;
  if (catalog_.rank() == 0) RemoveOldCheckpoints(options_.output, options_.keep);
}

// All ranks make the same number of attempts, because an error on one rank is thrown on all ranks.
void Trainer::SaveLast(const std::function<void(const std::string&)>& warn) {
  const std::chrono::seconds pause = std::min(kPause, options_.full_disk_wait);
  for (std::chrono::seconds left = options_.full_disk_wait;; left -= pause) {
    try {
      Save();
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource || left <= std::chrono::seconds{0}) throw;
      if (warn) {
        warn(
            fmt::format("{}; the write is retried for {} s; free disk space, otherwise the last {} "
                        "steps are lost",
                        error.what(), left.count(), state_.step - saved_step_.value_or(0)));
      }
      std::this_thread::sleep_for(pause);
    }
  }
}

void Trainer::Run(const std::function<void(const StepReport&)>& report,
                  const std::function<bool()>& stop,
                  const std::function<void(const std::string&)>& warn) {
  while (state_.step < options_.schedule.steps && !AnyRank(stop && stop())) {
    const StepReport step = Step();
    if (report) report(step);
    if (options_.save_every == 0 || state_.step % options_.save_every != 0 ||
        state_.step == options_.schedule.steps) {
      continue;
    }
    try {
      Save();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      if (warn) warn(error.what());
    }
  }
  if (saved_step_ != state_.step) SaveLast(warn);
}

}  // namespace switchyard::train
