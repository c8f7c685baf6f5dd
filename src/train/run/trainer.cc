#include "train/run/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>
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
  if (!(options.rule.spike_sigmas >= 0))
    throw Invalid("--spike-sigmas {}: want 0 or more", options.rule.spike_sigmas);
  if (options.rule.max_skipped < 0)
    throw Invalid("--max-skipped-steps {}: want 0 or more", options.rule.max_skipped);
}

// A checkpoint that cannot be written is a warning: the run goes on with the earlier one.
void WarnOfFullDisk(const std::function<void(const std::string&)>& warn,
                    const std::function<void()>& save) {
  try {
    save();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    if (warn) warn(error.what());
  }
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
      catalog_(model.Parameters(), ranks.all, ranks.tp, ranks.copies),
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
  if (DeviceUpdate* const update = model_.update()) update->FromHost(&adam_);
  state_ = std::move(state);
  saved_step_ = state_.step;
}

std::string Trainer::MomentsText() const {
  struct Bytes {
    int64_t here = 0, whole = 0;  // with and without shards
  };
  Bytes mine{.here = adam_.moment_bytes()};
  for (const Parameter<float>* p : catalog_.parameters())
    mine.whole += 2 * p->trained_count() * static_cast<int64_t>(sizeof(float));
  std::vector<Bytes> ranks(static_cast<size_t>(catalog_.size()), mine);
  if (ranks_.all != nullptr)
    ranks_.all->AllGatherV(&mine, ranks.data(), std::vector<size_t>(ranks.size(), sizeof mine));
  Bytes most;
  for (const Bytes& rank : ranks) {
    most.here = std::max(most.here, rank.here);
    most.whole = std::max(most.whole, rank.whole);
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format("AdamW's moments: at most {:.2f} MiB on a rank", mib(most.here));
  const auto sharded = [](const Parameter<float>* p) { return p->shards.partial(); };
  if (std::ranges::any_of(catalog_.parameters(), sharded))
    text += fmt::format(" ({:.2f} MiB without --zero-stage 1)", mib(most.whole));
  return text;
}

Losses Trainer::SumOverRanks(const Losses& mine) {
  if (ranks_.all == nullptr) return mine;
  std::vector<Losses> each(static_cast<size_t>(ranks_.all->size()));
  ranks_.all->AllGatherV(&mine, each.data(), std::vector<size_t>(each.size(), sizeof mine));
  Losses sum;
  for (const Losses& losses : each) sum += losses;
  return sum;
}

uint8_t Trainer::AnyRank(uint8_t mine) {
  if (ranks_.all == nullptr) return mine;
  std::vector<uint8_t> flags(static_cast<size_t>(ranks_.all->size()));
  ranks_.all->AllGatherV(&mine, flags.data(), std::vector<size_t>(flags.size(), 1));
  return std::accumulate(flags.begin(), flags.end(), uint8_t{0}, std::bit_or<uint8_t>());
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
    const Range range =
        RowsOfMicroBatch(total, static_cast<int64_t>(i), static_cast<int64_t>(batches.size()),
                         ranks_.part, ranks_.parts);
    for (int64_t r = range.begin; r < range.end; ++r) {
      AppendRow(corpus_.documents(), rows[static_cast<size_t>(r)], &batches[i]);
    }
  }
  {
    const profile::Span span(options_.profiler, {.name = "learn", .rows = report.tokens});
    report.losses = SumOverRanks(model_.Learn(batches, size));
    model_.SumGradients();
  }
  DeviceUpdate* const update = model_.update();
  const GradientNorm gradient =
      update != nullptr ? update->Norm() : NormOfGradients(catalog_, pool_);
  const double loss = report.losses.total();
  const std::string nonfinite = DescribeNonfinite(loss, gradient.not_finite);
  if (!nonfinite.empty() && !options_.rule.skip_nonfinite)
    EndRun(fmt::format("step {}: {}", report.step, nonfinite));
  report.skipped =
      ReasonToSkip(options_.rule, loss, gradient.norm, gradient.not_finite, &state_.history);
  if (state_.history.skipped > options_.rule.max_skipped) {
    EndRun(fmt::format("step {}: {}; skipped steps in a row: {} (--max-skipped-steps {})",
                       report.step, report.skipped, state_.history.skipped,
                       options_.rule.max_skipped));
  }
  report.gradient_norm = gradient.norm;
  report.rate = LearningRate(options_.schedule, state_.step);
  if (report.skipped.empty()) {
    Apply(gradient.norm, &report);
  } else {
    Skip();
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  state_.position = position;
  state_.step = report.step;
  state_.tokens += report.tokens;
  state_.seconds += report.seconds;
  return report;
}

StepReport Trainer::RecordedStep() {
  profile::Step recorded(options_.profiler);
  StepReport report = Step();
  recorded.End(profile::Stage::kTraining, report.tokens);
  return report;
}

void Trainer::Apply(double norm, StepReport* report) {
  const profile::Span span(options_.profiler, {.name = "update"});
  const double scale = ClipScale(norm, options_.clip);
  if (DeviceUpdate* const update = model_.update()) {
    update->Step(report->rate, scale, &adam_);
  } else {
    adam_.Step(report->rate, scale, pool_);
  }
  model_.GatherShards();
  report->figures = model_.AfterStep(RateFraction(options_.schedule, state_.step));
}

void Trainer::Skip() {
  if (DeviceUpdate* const update = model_.update()) {
    update->ClearGradients();
  } else {
    for (Parameter<float>* p : catalog_.parameters()) std::ranges::fill(p->gradient, 0.0f);
  }
  model_.SkipStep();
}

// All ranks call it at the same step, so the checkpoint in the background can still be completed.
void Trainer::EndRun(const std::string& why) {
  try {
    Publish();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
  }
  throw Error(ErrorKind::kInvalid, why,
              saved_step_ ? "the last good checkpoint is " +
                                CheckpointPath(options_.output, *saved_step_).string()
                          : "there is no checkpoint yet");
}

// Completes the checkpoint in the background, if there is one.
void Trainer::Publish() {
  const std::unique_ptr<CheckpointWrite> writing = std::move(writing_);
  if (writing == nullptr) return;
  writing->Publish();
  saved_step_ = writing_step_;
  if (catalog_.rank() == 0) RemoveOldCheckpoints(options_.output, options_.keep);
}

// Before each Save. Not a part of it, because an error of the device is not one of a disk.
void Trainer::CopyToHost() {
  if (DeviceUpdate* const update = model_.update()) update->ToHost(&adam_);
}

void Trainer::Save(bool background) {
  const std::filesystem::path path = CheckpointPath(options_.output, state_.step);
  if (background) {
    writing_ = std::make_unique<CheckpointWrite>(path, catalog_, &adam_, state_, options_.files);
    writing_step_ = state_.step;
    return;
  }
  SaveCheckpoint(path, catalog_, &adam_, state_, options_.files);
  saved_step_ = state_.step;
  if (catalog_.rank() == 0) RemoveOldCheckpoints(options_.output, options_.keep);
}

// All ranks make the same number of attempts, because an error on one rank is thrown on all ranks.
void Trainer::SaveLast(const std::function<void(const std::string&)>& warn) {
  CopyToHost();
  const std::chrono::seconds pause = std::min(kPause, options_.full_disk_wait);
  for (std::chrono::seconds left = options_.full_disk_wait;; left -= pause) {
    try {
      Save(/*background=*/false);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResource) throw;
      if (left <= std::chrono::seconds{0}) throw SaveError(error);
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
  constexpr uint8_t kStop = 1, kWriting = 2;
  while (state_.step < options_.schedule.steps) {
    const bool stops = stop && stop(), writes = writing_ != nullptr && !writing_->written();
    const uint8_t ranks =
        AnyRank(static_cast<uint8_t>((stops ? kStop : 0) | (writes ? kWriting : 0)));
    if ((ranks & kWriting) == 0) WarnOfFullDisk(warn, [this] { Publish(); });
    if ((ranks & kStop) != 0) break;
    const StepReport step = RecordedStep();
    if (report) report(step);
    if (warn && !step.skipped.empty())
      warn(fmt::format("step {}: the update is skipped: {}", step.step, step.skipped));
    if (options_.save_every == 0 || state_.step % options_.save_every != 0 ||
        state_.step == options_.schedule.steps) {
      continue;
    }
    WarnOfFullDisk(warn, [this] { Publish(); });
    CopyToHost();
    WarnOfFullDisk(warn, [this] { Save(options_.async_save); });
  }
  WarnOfFullDisk(warn, [this] { Publish(); });
  if (saved_step_ != state_.step) SaveLast(warn);
}

}  // namespace switchyard::train
