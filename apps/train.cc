// `switchyard train`: trains a language model on text.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "apps/commands.h"
#include "core/error.h"
#include "server/service_manager.h"
#include "train/app/picture.h"
#include "train/app/training.h"

namespace switchyard {
namespace {

train::TrainingOptions OptionsOf(const TrainArgs& args) {
  using Encoder = train::DocumentEncoder;
  train::TrainingOptions o;
  o.model = args.model;
  o.tokenizer = args.tokenizer_path;
  o.init_from = args.init_from;
  o.init_deviation = args.init_deviation;
  o.seed = args.seed;
  o.mtp_layers = args.mtp_layers;
  o.data.assign(args.data.begin(), args.data.end());
  o.chat_loss = args.chat_loss == "all" ? Encoder::ChatLoss::kAll : Encoder::ChatLoss::kAssistant;
  o.routing_replay = args.routing_replay == "on";
  o.packing = {.length = args.length,
               .whole_documents = args.whole_documents,
               .shuffle = !args.in_order,
               .seed = args.seed};
  o.losses.mtp_weight = args.mtp_weight;
  o.losses.mtp_only = args.train_only == "mtp";
  o.losses.balance = {
      .batch = args.balance_loss, .sequence = args.sequence_balance_loss, .z = args.z_loss};
  o.learner = {.bias_step = args.bias_step,
               .bias_step_falls = args.bias_step_schedule == "rate",
               .order = args.schedule == "overlapped" ? schedule::Order::kOverlapped
                                                      : schedule::Order::kPlain};
  o.trainer.rows_per_step = args.rows_per_step;
  o.trainer.rows_per_pass = args.rows_per_pass;
  o.trainer.schedule = {.kind = args.lr_schedule,
                        .rate = args.learning_rate,
                        .final_part = args.final_lr_part,
                        .warmup_steps = args.warmup_steps,
                        .decay_steps = args.decay_steps,
                        .steps = args.steps};
  o.trainer.adam = {.beta1 = args.adam_beta1,
                    .beta2 = args.adam_beta2,
                    .epsilon = args.adam_epsilon,
                    .weight_decay = args.weight_decay};
  o.trainer.clip = args.clip_grad_norm;
  o.trainer.save_every = args.save_every;
  o.trainer.keep = args.keep;
  o.trainer.full_disk_wait = std::chrono::seconds(args.full_disk_wait_seconds);
  o.trainer.output = args.output;
  o.trainer.files.dtype = args.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  o.layout = {.tp = args.tp, .ep = args.ep, .dp = args.dp, .pp = args.pp};
  o.early_sums = args.early_sums;
  o.threads = args.threads;
  o.products = args.compute_dtype == "bfloat16" ? train::ProductDtype::kBFloat16
                                                : train::ProductDtype::kFloat32;
  o.synchronous = args.exchange == "sync";
  o.timeout = std::chrono::milliseconds(static_cast<int64_t>(args.timeout_seconds * 1e3));
  o.resume = args.resume;
  return o;
}

// The first SIGINT or SIGTERM requests a stop, which the run checks between steps; the second ends
// the process.
class StopWatch {
 public:
  StopWatch(const StopSignals& signals, train::Progress& progress)
      : thread_([this, &signals, &progress] {
          while (!done_) {
            if (signals.Wait(std::chrono::milliseconds(100)) == 0) continue;
            if (cancel_requested_) _exit(130);
            cancel_requested_ = true;
            progress.Say(
                "stopping after this step; repeat the signal to stop immediately, without saving");
          }
        }) {}
  ~StopWatch() {
    done_ = true;
    thread_.join();
  }
  bool cancel_requested() const { return cancel_requested_; }

 private:
  std::atomic<bool> done_{false}, cancel_requested_{false};
  std::thread thread_;
};

}  // namespace

int RunTrain(const TrainArgs& args) {
  if (args.export_only) {
    fmt::print("{}\n", train::ExportFinal(args.output).string());
    return 0;
  }
  const train::TrainingOptions options = OptionsOf(args);
  if (args.print_schedule) {
    fmt::print("{}", train::ScheduleText(options));
    return 0;
  }
  // If SIGXFSZ is ignored, a write beyond the file-size limit fails like a write to a full disk,
  // and does not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const StopSignals signals;
  train::Progress progress(stderr, isatty(STDERR_FILENO) == 1);
  const StopWatch watch(signals, progress);
  const train::TrainingEnd end = train::RunTraining(
      options, [&] { return watch.cancel_requested(); }, progress);
  if (end.stopped) {
    progress.Say(
        fmt::format("stopped after step {} of {}; {} is saved, and the same command continues from "
                    "it",
                    end.step, args.steps, end.checkpoint.string()));
    return 0;
  }
  const std::string model = train::ExportFinal(args.output).string();
  try {
    train::WritePictures(args.output);
  } catch (const Error& error) {  // The model is saved even if the pictures fail.
    progress.Say(error.what());
  }
  fmt::print("{}\n", model);
  return 0;
}

}  // namespace switchyard
