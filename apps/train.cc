// `switchyard train`: trains a language model on text.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "comm/host/agreement.h"
#include "comm/host/launcher.h"
#include "comm/host/rank_processes.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/wire.h"
#include "kernels/device.h"
#include "server/service_manager.h"
#include "train/app/picture.h"
#include "train/app/training.h"
#include "train/device/cuda_ops.h"
#include "train/hosts/front.h"
#include "train/hosts/launch.h"

namespace switchyard {
namespace {

schedule::Order OrderOf(const std::string& name) {
  if (name == "zero-bubble") return schedule::Order::kZeroBubble;
  return name == "overlapped" ? schedule::Order::kOverlapped : schedule::Order::kPlain;
}

train::Recompute RecomputeOf(const std::string& name) {
  if (name == "moe") return train::Recompute::kMoe;
  if (name == "attention") return train::Recompute::kAttention;
  return name == "layer" ? train::Recompute::kLayer : train::Recompute::kNone;
}

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
               .order = OrderOf(args.schedule)};
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
  o.trainer.rule = {.skip_nonfinite = args.on_nonfinite == "skip",
                    .spike_sigmas = args.spike_sigmas,
                    .max_skipped = args.max_skipped_steps};
  o.trainer.save_every = args.save_every;
  o.trainer.keep = args.keep;
  o.trainer.async_save = args.async_save;
  o.trainer.full_disk_wait = std::chrono::seconds(args.full_disk_wait_seconds);
  o.trainer.output = args.output;
  o.trainer.files.dtype = args.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  if (args.device == "cuda") {
    if (args.base_gpu_id >= kernels::CudaDeviceCount())
      throw Invalid(
          "--device cuda: GPU {} is not there; this program finds {} GPUs (--base-gpu-id)",
          args.base_gpu_id, kernels::CudaDeviceCount());
    o.device_ops = [first = args.base_gpu_id, step = args.gpu_id_step](train::LayoutRanks& ranks,
                                                                       ThreadPool&) {
      return train::MakeCudaRankOps(first + ranks.place.rank * step, ranks);
    };
  }
  o.layout = {.tp = args.tp, .ep = args.ep, .dp = args.dp, .pp = args.pp};
  o.early_sums = args.early_sums;
  o.zero_stage = args.zero_stage;
  o.lora = {.rank = args.lora_rank, .alpha = args.lora_alpha, .targets = args.lora_targets};
  o.recompute = RecomputeOf(args.recompute);
  o.threads = args.threads;
  o.products = args.compute_dtype == "fp8"        ? train::ProductDtype::kFp8
               : args.compute_dtype == "bfloat16" ? train::ProductDtype::kBFloat16
                                                  : train::ProductDtype::kFloat32;
  o.synchronous = args.exchange == "sync";
  o.timeout = std::chrono::milliseconds(static_cast<int64_t>(args.timeout_seconds * 1e3));
  o.resume = args.resume;
  o.tensorboard = args.tensorboard;
  if (!args.profile.empty())
    o.profile = profile::Options{.dir = args.profile,
                                 .name = "train",
                                 .start_step = args.profile_start_step,
                                 .num_steps = args.profile_steps};
  return o;
}

// The flags that must be equal on all hosts. Paths may differ, except that of the output, which all
// hosts share; the ranks compare what they have read.
Statement StatementOf(const TrainArgs& a) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  return {{"--seed", text(a.seed)},
          {"--init-deviation", text(a.init_deviation)},
          {"--mtp-layers", text(a.mtp_layers)},
          {"--mtp-weight", text(a.mtp_weight)},
          {"--train-only", a.train_only},
          {"--lora-rank", text(a.lora_rank)},
          {"--lora-alpha", text(a.lora_alpha)},
          {"--lora-targets", Joined(a.lora_targets, " ")},
          {"--length", text(a.length)},
          {"--whole-documents", text(a.whole_documents)},
          {"--in-order", text(a.in_order)},
          {"--chat-loss", a.chat_loss},
          {"--routing-replay", a.routing_replay},
          {"--steps", text(a.steps)},
          {"--rows-per-step", text(a.rows_per_step)},
          {"--rows-per-pass", text(a.rows_per_pass)},
          {"--learning-rate", text(a.learning_rate)},
          {"--lr-schedule", a.lr_schedule},
          {"--final-lr-part", text(a.final_lr_part)},
          {"--warmup-steps", text(a.warmup_steps)},
          {"--decay-steps", text(a.decay_steps)},
          {"--adam-beta1", text(a.adam_beta1)},
          {"--adam-beta2", text(a.adam_beta2)},
          {"--adam-epsilon", text(a.adam_epsilon)},
          {"--weight-decay", text(a.weight_decay)},
          {"--clip-grad-norm", text(a.clip_grad_norm)},
          {"--on-nonfinite", a.on_nonfinite},
          {"--spike-sigmas", text(a.spike_sigmas)},
          {"--max-skipped-steps", text(a.max_skipped_steps)},
          {"--compute-dtype", a.compute_dtype},
          {"--balance-loss", text(a.balance_loss)},
          {"--sequence-balance-loss", text(a.sequence_balance_loss)},
          {"--z-loss", text(a.z_loss)},
          {"--bias-step", text(a.bias_step)},
          {"--bias-step-schedule", a.bias_step_schedule},
          {"--tp", text(a.tp)},
          {"--ep", text(a.ep)},
          {"--pp", text(a.pp)},
          {"--dp", text(a.dp)},
          {"--device", a.device},
          {"--exchange", a.exchange},
          {"--schedule", a.schedule},
          {"--zero-stage", text(a.zero_stage)},
          {"--recompute", a.recompute},
          {"--max-restarts", text(a.max_restarts)},
          {"--output", a.output},
          {"--save-every", text(a.save_every)},
          {"--keep", text(a.keep)},
          {"--async-save", text(a.async_save)},
          {"--dtype", a.dtype},
          {"--full-disk-wait", text(a.full_disk_wait_seconds)}};
}

// The spec of rank processes: their command line.
std::string SpecOf(const TrainArgs& args, const std::string& resume) {
  std::vector<std::string> words = args.words;
  words.insert(words.end(), {"--resume", resume});
  WireWriter writer;
  writer.Put(words.size());
  for (const std::string& word : words) writer.Put(word);
  return writer.Take();
}

std::vector<std::string> WordsOf(const std::string& spec) {
  WireReader reader(spec);
  std::vector<std::string> words(reader.Get<size_t>());
  for (std::string& word : words) word = reader.GetString();
  return words;
}

// Throws unless there is a GPU for each rank.
void CheckGpus(const TrainArgs& args, const train::Layout& layout) {
  if (args.device != "cuda") return;
  const int last = args.base_gpu_id + (layout.ranks() - 1) * args.gpu_id_step;
  if (last >= kernels::CudaDeviceCount())
    throw Invalid(
        "--device cuda: the {} ranks of --dp and --ep need GPUs {} to {}, but this program finds "
        "{} "
        "GPUs (--base-gpu-id, --gpu-id-step)",
        layout.ranks(), args.base_gpu_id, last, kernels::CudaDeviceCount());
}

// Sets the layout's absent sizes.
train::TrainingOptions WithLayout(train::TrainingOptions options) {
  options.layout = LayoutOf(options, ReadTrainedConfig(options).config);
  return options;
}

// If SIGXFSZ is ignored, a write beyond the file-size limit fails like a write to a full disk, and
// does not kill the process.
void IgnoreFileSizeSignal() { std::signal(SIGXFSZ, SIG_IGN); }

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

// Runs the ranks as the launch says, until the run ends on all hosts.
train::TrainingEnd RunRanks(const train::FrontOptions& front, const std::function<bool()>& stop,
                            train::Progress& progress) {
  using Ranks = train::Launch::Ranks;
  const train::TrainingOptions& options = front.training;
  if (front.launch.ranks == Ranks::kThreads) return train::RunTraining(options, stop, progress);
  if (front.launch.leads()) train::PrepareRun(options);
  if (front.launch.ranks == Ranks::kThis) return train::RunLaunchedRank(front, stop, progress);
  train::RunRankProcesses(front, stop, progress);
  return front.launch.leads() ? train::EndOfRun(options) : train::TrainingEnd();
}

}  // namespace

int RunTrain(const TrainArgs& args) {
  if (args.export_only) {
    fmt::print("{}\n", train::ExportFinal(args.output).string());
    return 0;
  }
  if (args.print_schedule) {
    fmt::print("{}", train::ScheduleText(OptionsOf(args)));
    return 0;
  }
  train::FrontOptions front{
      .training = WithLayout(OptionsOf(args)),
      .statement = StatementOf(args),
      .max_restarts = args.max_restarts,
      .stall_timeout = Milliseconds(args.rank_stall_seconds.value_or(10)),
      .spec = [&](const std::string& resume) { return SpecOf(args, resume); }};
  front.launch = train::PlanLaunch({.nnodes = args.nnodes,
                                    .node_rank = args.node_rank,
                                    .dist_init_addr = args.dist_init_addr,
                                    .dist_secret_file = args.dist_secret_file,
                                    .max_restarts = args.max_restarts,
                                    .early_sums = args.early_sums,
                                    .rank_stall_timeout = args.rank_stall_seconds.has_value(),
                                    .gpus = args.device == "cuda"},
                                   front.training.layout.ranks(), FindLauncher());
  CheckGpus(args, front.training.layout);
  if (front.launch.nodes > 1) {
    const bool host = front.launch.ranks == train::Launch::Ranks::kProcesses;
    InitLog("info", fmt::format("{} {}", host ? "node" : "rank", front.launch.node));
  }
  IgnoreFileSizeSignal();
  const StopSignals signals;
  // Each rank of a launcher is a process, but only rank 0 reports.
  const bool reports =
      front.launch.leads() || front.launch.ranks == train::Launch::Ranks::kProcesses;
  train::Progress progress(reports ? stderr : nullptr, isatty(STDERR_FILENO) == 1);
  const StopWatch watch(signals, progress);
  const train::TrainingEnd end = RunRanks(
      front, [&] { return watch.cancel_requested(); }, progress);
  if (!front.launch.leads()) return 0;
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

static_assert(kTrainRankCommand == train::kRankCommand);

int RunTrainRank(int argc, char** argv) {
  RankSpec spec = InheritRankSpec();
  const auto args = ParseTrain(WordsOf(spec.spec));
  if (!args) return 0;
  const train::TrainingOptions options = WithLayout(OptionsOf(*args));
  const std::string title = train::RankCoordinates(options.layout, spec.rank).Title();
  SetProcessTitle(argc, argv, "switchyard::train " + title);
  InitLog("info", title);
  IgnoreFileSizeSignal();
  std::signal(SIGPIPE, SIG_IGN);
  train::Progress progress(spec.rank == 0 ? stderr : nullptr, isatty(STDERR_FILENO) == 1);
  return train::RunChildRank(options, std::move(spec), progress);
}

}  // namespace switchyard
