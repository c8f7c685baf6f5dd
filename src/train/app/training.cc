#include "train/app/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "core/format.h"
#include "model/families/family.h"
#include "profile/profiler.h"
#include "schedule/print.h"
#include "train/app/event_log.h"
#include "train/app/options.h"
#include "train/app/step_log.h"
#include "train/device/learner.h"
#include "train/exchange/expert_exchange.h"
#include "train/gradients.h"
#include "train/model.h"
#include "train/optimizer/catalog.h"
#include "train/run/layout.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

// Everything that is known before the ranks start.
struct Setup {
  TrainingOptions options;
  ModelFiles files;
  std::vector<EncodedDocument> documents;
  std::optional<fs::path> resumed;
  ExpertExchangeOptions exchange;
  size_t link_floats = 0;  // maximum floats of a message between pipeline stages
  // For early gradient sums; null: gradients are summed at the end of a step.
  std::shared_ptr<SharedArena> sums;
};

std::vector<EncodedDocument> ReadCorpus(const TrainingOptions& options, const ModelFiles& files) {
  const std::vector<Document> documents = ReadDocuments(options.data);
  // Uses the copy of the tokenizer in the run's directory, because checkpoints contain that copy.
  const DocumentEncoder encoder(files.files.front().parent_path(), options.chat_loss,
                                ModelShape::Of(files.config));
  std::vector<EncodedDocument> encoded;
  encoded.reserve(documents.size());
  for (const Document& document : documents) {
    encoded.push_back(encoder.Encode(document));
    if (!options.routing_replay) encoded.back().experts.reset();
  }
  return encoded;
}

// The checkpoint to resume from; nullopt: starts from the beginning.
std::optional<fs::path> CheckpointToResume(const TrainingOptions& options) {
  const fs::path& output = options.trainer.output;
  std::optional<fs::path> last = LatestCheckpoint(output);
  if (options.resume == "auto") return last;
  if (options.resume == "never") {
    if (!last) return std::nullopt;
    throw Error(ErrorKind::kInvalid,
                fmt::format("--resume never: {} holds {}", output.string(), last->string()),
                "remove it, or name another --output");
  }
  const fs::path named = options.resume;
  if (!fs::exists(named / "trainer.json")) {
    throw NotFound(
        "--resume {}: not a checkpoint of a run (no trainer.json); want auto, never or a "
        "checkpoint's directory",
        options.resume);
  }
  // A later resume would treat a checkpoint of another run in --output as one of this run.
  if (last && !fs::equivalent(*last, named)) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("--resume {}: --output holds another checkpoint, {}", options.resume,
                            last->string()),
                "remove it, or name another --output");
  }
  return named;
}

void CheckMtpOnly(const TrainingOptions& options, const TrainedConfig& model) {
  if (!options.losses.mtp_only) return;
  const Family* family = FindFamily(model.config.architecture);
  if (family != nullptr && !family->mtp)
    throw Invalid(
        "--train-only mtp: {} has no support for MTP modules; want a model such as "
        "DeepseekV3ForCausalLM or Glm4MoeForCausalLM",
        model.config.architecture);
  if (model.mtp_layers == 0)
    throw Error(ErrorKind::kInvalid, "--train-only mtp: the model has no MTP module",
                "add one with --mtp-layers 1");
  if (options.layout.pp > 1)
    throw Invalid("--train-only mtp: the modules are on one pipeline stage; want --pp 1, not {}",
                  options.layout.pp);
  if (options.init_from.empty())
    throw Error(ErrorKind::kInvalid,
                "--train-only mtp needs trained weights of the rest of the model",
                "name their checkpoint with --init-from");
}

const char* Name(Recompute recompute) {
  constexpr const char* kNames[] = {"none", "moe", "attention", "layer"};
  return kNames[static_cast<int>(recompute)];
}

// The schedule with separate weight gradients.
void CheckZeroBubble(const TrainingOptions& options) {
  if (options.learner.order != schedule::Order::kZeroBubble) return;
  if (options.layout.pp == 1)
    throw Invalid("--schedule zero-bubble: fills the waits of pipeline stages; want --pp above 1");
  if (options.recompute != Recompute::kNone)
    throw Invalid(
        "--recompute {}: not with --schedule zero-bubble, whose weight gradients read the "
        "activations after the backward pass",
        Name(options.recompute));
}

// Sets the sizes of buffers, which follow from the options and the config.
void SetSizes(Setup* setup) {
  const int64_t pass_tokens = setup->options.trainer.rows_per_pass * setup->options.packing.length;
  setup->link_floats = static_cast<size_t>(pass_tokens * setup->files.config.hidden);
  setup->exchange = {.tokens = pass_tokens, .synchronous = setup->options.synchronous};
}

// What is known without reading the data.
Setup PrepareWithoutData(const TrainingOptions& options, RunFiles run_files) {
  Setup setup{.options = options};
  CheckSchedule(options.trainer.schedule);
  CheckMtpOnly(options, ReadTrainedConfig(options));
  CheckZeroBubble(options);
  setup.files = PrepareModelFiles(options, run_files);
  setup.options.layout = LayoutOf(options, setup.files.config);
  setup.options.lora = LoraOf(options, setup.files.config);
  CheckDevice(setup.options, setup.options.layout, setup.files.config);
  if (options.recompute == Recompute::kMoe && !setup.files.config.has_moe())
    throw Invalid("--recompute moe: the model ({}) has no experts",
                  setup.files.config.architecture);
  setup.resumed = CheckpointToResume(options);
  if (setup.resumed) {
    CheckSameConfig(*setup.resumed, setup.files.files.front());
    CheckSameLora(*setup.resumed, setup.options.lora);
  }
  setup.options.losses.mtp_layers = setup.files.mtp_layers;
  setup.options.trainer.files.copied = setup.files.files;
  SetSizes(&setup);
  return setup;
}

Setup Prepare(const TrainingOptions& options, RunFiles run_files, Progress& progress) {
  Setup setup = PrepareWithoutData(options, run_files);
  setup.documents = ReadCorpus(options, setup.files);
  const Corpus corpus(setup.documents, options.packing);  // throws if the corpus is empty
  const auto replayed = std::ranges::count_if(
      setup.documents, [](const EncodedDocument& d) { return d.experts != nullptr; });
  progress.Say(fmt::format(
      "one epoch: {} documents, {} tokens, {} of them targets{}", setup.documents.size(),
      corpus.tokens(), corpus.targets(),
      replayed > 0 ? fmt::format("; {} documents give the experts of their tokens", replayed)
                   : ""));
  return setup;
}

TrainingEnd EndAt(const TrainingOptions& options, int64_t step) {
  return {.step = step,
          .stopped = step < options.trainer.schedule.steps,
          .checkpoint = CheckpointPath(options.trainer.output, step)};
}

constexpr size_t kSlack = 4096;  // bytes for alignment

size_t BytesPerRank(const Setup& setup) {
  const Layout& layout = setup.options.layout;
  const size_t bytes = LayoutRanks::BytesPerRank(layout) + kSlack +
                       LearnerLinks::BytesPerRank(layout, setup.link_floats);
  if (setup.options.device_ops != nullptr)
    return bytes + RankComm::BytesPerRank(DeviceMesh(layout));
  return bytes + ExpertExchange::BytesPerRank(layout.ep, setup.files.config, setup.exchange);
}

// All ranks must have the same rows. If they are processes, each has read the data itself.
void CheckSameData(Collectives& world, const Corpus& corpus) {
  const std::vector<std::string> all = GatherStrings(&world, corpus.fingerprint());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw Error(ErrorKind::kInvalid,
                fmt::format("--data: rank {} has read other documents than rank 0", rank),
                "the files need the same content on all hosts");
  }
}

// A process may see another checkpoint than rank 0, if another host's directory is shared late.
std::optional<fs::path> CheckpointOfRank0(Collectives& world,
                                          const std::optional<fs::path>& resumed) {
  const std::string path = GatherStrings(&world, resumed ? resumed->string() : "").front();
  return path.empty() ? std::nullopt : std::optional<fs::path>(path);
}

// The memory of activations on the rank that has most of them. Collective.
std::string ActivationsText(const TrainingOptions& options, const Learner& learner,
                            Collectives& world) {
  const int64_t parts = options.layout.dp, rows = options.trainer.rows_per_step;
  const int64_t per_pass = options.trainer.rows_per_pass * parts;
  const int64_t passes = (rows + per_pass - 1) / per_pass;
  const int64_t tokens = (rows + passes * parts - 1) / (passes * parts) * options.packing.length;
  const Learner::ActivationMemory mine = learner.Activations(static_cast<int>(passes), tokens);
  std::vector<Learner::ActivationMemory> ranks(static_cast<size_t>(world.size()));
  world.AllGatherV(&mine, ranks.data(), std::vector<size_t>(ranks.size(), sizeof mine));
  const Learner::ActivationMemory& most =
      *std::ranges::max_element(ranks, {}, &Learner::ActivationMemory::bytes);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = fmt::format(
      "activations: at most {:.2f} MiB on a rank, for {} micro-batch{} of {} tokens in flight",
      mib(most.bytes), most.slots, most.slots == 1 ? "" : "es", tokens);
  if (options.recompute != Recompute::kNone) {
    text += fmt::format(" ({:.2f} MiB without --recompute {})", mib(most.unrecomputed),
                        Name(options.recompute));
  }
  return text;
}

// The model of a rank in the training loop: on the rank's threads or on a device.
class RankLearner {
 public:
  RankLearner(const TrainingOptions& options, Model<float>& model, LayoutRanks& ranks,
              const LearnerLinks& links, ThreadPool& pool, profile::Profiler& profiler) {
    LearnerOptions own = options.learner;
    own.profiler = &profiler;
    if (options.device_ops == nullptr) {
      host_.emplace(model, own, links.ranks());
    } else {
      ops_ = options.device_ops(ranks, pool);
      device_.emplace(model, own, *ops_.ops, *ops_.ranks,
                      DeviceOptions{.fp8 = options.products == ProductDtype::kFp8});
    }
  }
  TrainedModel& model() {
    return device_ ? static_cast<TrainedModel&>(*device_) : static_cast<TrainedModel&>(*host_);
  }
  // What to report of the memory. Collective.
  std::string MemoryText(const TrainingOptions& options, Collectives& world) const {
    if (host_) return ActivationsText(options, *host_, world);
    return fmt::format("{}: {:.2f} MiB of parameters, gradients and moments",
                       ops_.ops->device().Describe(),
                       static_cast<double>(device_->model().bytes()) / (1 << 20));
  }

 private:
  RankOps ops_;                  // outlives device_
  std::optional<Learner> host_;  // one of the two
  std::optional<DeviceLearner<BF16>> device_;
};

void AbortWith(const std::exception& error, int rank, SharedArena& arena) {
  arena.Abort(fmt::format("rank {} failed: {}", rank, error.what()));
}

// Reports the files of rank 0, and missing files of all ranks.
void EndProfile(profile::Profiler& profiler, bool first, Progress& progress) {
  const profile::Result result = profiler.Stop().value();
  if (!result.error.empty()) {
    progress.Say(fmt::format("--profile: {}", result.error));
  } else if (first) {
    progress.Say(fmt::format("--profile: {} events in {}, {} were dropped", result.events,
                             Joined(result.files, ", "), result.dropped));
  }
}

// Main function of one rank. Only rank 0 reports progress. `on_error` gets the error of the
// training loop while the trainer still exists, and aborts the arena. The trainer's destructor
// waits for the checkpoint in the background, which may take long; other ranks must not wait that
// long.
TrainingEnd RunRank(const Setup& setup, int rank, const std::shared_ptr<SharedArena>& arena,
                    const std::function<bool()>& stop, Progress& progress,
                    const std::function<void(const std::exception&)>& on_error) {
  const TrainingOptions& options = setup.options;
  const auto ranks = LayoutRanks::Create(arena, options.layout, rank, {.timeout = options.timeout});
  ThreadPool pool(options.threads);
  ExpertRanks experts = {.rank = ranks->place.ep, .size = options.layout.ep};
  std::optional<ExpertExchange> exchange;  // devices have their own
  if (options.device_ops == nullptr) {
    exchange.emplace(*ranks->memory, ranks->place.EpGroup(), setup.files.config, setup.exchange,
                     pool);
    experts = exchange->ranks();
  }
  const LearnerLinks links(*ranks, setup.link_floats, {.timeout = options.timeout}, setup.sums);
  Model<float> model(setup.files.config, options.losses, ranks->layer_ranks(experts), pool,
                     ranks->place.Stage(setup.files.config), options.products, options.backward(),
                     options.lora);
  Corpus corpus(setup.documents, options.packing);
  CheckSameData(*ranks->world, corpus);
  const std::optional<fs::path> resumed = CheckpointOfRank0(*ranks->world, setup.resumed);
  if (!resumed) {
    // Initialises all parameters first, because Load does not set MTP modules that the checkpoint
    // lacks.
    model.Initialise(options.seed, options.init_deviation);
    if (!options.init_from.empty()) model.Load(options.init_from);
  }
  if (options.zero_stage > 0) ShardMoments(model.parameters(), ranks->gradient_groups());
  profile::Profiler profiler(rank, ranks->place.Title());
  RankLearner learner(options, model, *ranks, links, pool, profiler);
  TrainerOptions trainer_options = options.trainer;
  trainer_options.profiler = &profiler;
  Trainer trainer(learner.model(), corpus, trainer_options, ranks->trainer_ranks(), pool);
  if (resumed) trainer.Resume(*resumed);
  // Two statements, because both are collective and operands have no order of evaluation.
  const std::string moments = trainer.MomentsText();
  const std::string memory = learner.MemoryText(options, *ranks->world);

  const bool first = rank == 0;
  std::optional<StepLog> log;
  std::optional<EventLog> events;
  if (first) {
    const auto say = [&](const std::string& text) { progress.Say(text); };
    log.emplace(options.trainer.output / "log.jsonl", trainer.state().step, say);
    if (options.tensorboard)
      events.emplace(options.trainer.output / "tensorboard", trainer.state().step, say);
    if (resumed) {
      say(fmt::format("resuming from {}, after step {}", resumed->string(), trainer.state().step));
    }
    say(moments);
    say(memory);
    progress.Begin(options.trainer.schedule.steps, trainer.state().step);
  }
  try {
    if (options.profile) profiler.Start(*options.profile);
    trainer.Run(
        [&](const StepReport& report) {
          if (!first) return;
          log->Write(report);
          if (events) events->Write(report);
          progress.Step(report);
        },
        [&] {
          ranks->memory->TestFault(fmt::format("step{}", trainer.state().step));
          return stop && stop();
        },
        [&](const std::string& warning) {
          if (first) progress.Say(warning);
        });
  } catch (const std::exception& error) {
    on_error(error);
    throw;
  }
  if (options.profile) EndProfile(profiler, first, progress);
  return EndAt(options, trainer.state().step);
}

}  // namespace

TrainingEnd RunTraining(const TrainingOptions& options, const std::function<bool()>& stop,
                        Progress& progress) {
  Setup setup = Prepare(options, RunFiles::kWrite, progress);
  const Layout& layout = setup.options.layout;
  if (options.early_sums && layout.ranks() > 1) {
    setup.sums = SharedArena::Create(layout.ranks(), LayoutRanks::BytesPerRank(layout) + kSlack);
  }
  TrainingEnd end;
  std::mutex mutex;
  std::exception_ptr cause;  // the error that aborted the arena; other ranks fail because of it
  const auto run = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    const TrainingEnd mine =
        RunRank(setup, rank, arena, stop, progress, [&](const std::exception& error) {
          const std::lock_guard lock(mutex);
          if (arena->aborted()) return;
          cause = std::current_exception();
          AbortWith(error, rank, *arena);
        });
    if (rank == 0) end = mine;
  };
  try {
    RunRankThreads(layout.ranks(), BytesPerRank(setup), run);
  } catch (const std::exception&) {
    if (cause != nullptr) std::rethrow_exception(cause);
    throw;
  }
  progress.Finish();
  return end;
}

Layout PrepareRun(const TrainingOptions& options) {
  return PrepareWithoutData(options, RunFiles::kWrite).options.layout;
}

size_t ArenaBytesPerRank(const TrainingOptions& options) {
  Setup setup{.options = options};
  setup.files.config = ReadTrainedConfig(options).config;
  setup.options.layout = LayoutOf(options, setup.files.config);
  SetSizes(&setup);
  return BytesPerRank(setup);
}

TrainingEnd RunTrainingRank(const TrainingOptions& options, int rank,
                            const std::shared_ptr<SharedArena>& arena,
                            const std::function<bool()>& stop, Progress& progress) {
  const Setup setup = Prepare(options, RunFiles::kFound, progress);
  const TrainingEnd end =
      RunRank(setup, rank, arena, stop, progress,
              [&](const std::exception& error) { AbortWith(error, rank, *arena); });
  progress.Finish();
  return end;
}

TrainingEnd EndOfRun(const TrainingOptions& options) {
  const std::optional<int64_t> step = LatestStep(options.trainer.output);
  if (!step) throw NotFound("{}: the run left no checkpoint", options.trainer.output.string());
  return EndAt(options, *step);
}

std::string ScheduleText(const TrainingOptions& options) {
  CheckZeroBubble(options);
  const TrainedConfig model = ReadTrainedConfig(options);
  const Layout layout = LayoutOf(options, model.config);
  const int64_t per_pass = options.trainer.rows_per_pass * layout.dp;
  schedule::StepShape shape{
      .micro_batches = static_cast<int>((options.trainer.rows_per_step + per_pass - 1) / per_pass),
      .order = options.learner.order,
      .stages = layout.pp,
      .early_sums = options.early_sums && layout.ranks() > 1};
  std::string text;
  for (shape.stage = 0; shape.stage < layout.pp; ++shape.stage) {
    const StageRange range =
        RankCoordinates(layout, shape.stage * layout.stage_ranks()).Stage(model.config);
    shape.first_layer = static_cast<int>(range.first_layer);
    shape.experts.clear();
    for (int64_t layer = range.first_layer; layer < range.last_layer; ++layer) {
      shape.experts.push_back(model.config.layers[static_cast<size_t>(layer)].moe);
    }
    if (shape.last())
      shape.experts.resize(shape.experts.size() + model.mtp_layers, model.config.has_moe());
    if (shape.stage > 0) text += "\n";
    text += schedule::PrintSchedule(shape);
  }
  return text;
}

}  // namespace switchyard::train
