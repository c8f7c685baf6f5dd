#include "train/app/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "core/format.h"
#include "model/families/family.h"
#include "schedule/print.h"
#include "train/app/options.h"
#include "train/app/step_log.h"
#include "train/exchange/expert_exchange.h"
#include "train/model.h"
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
    throw Invalid("--train-only mtp: {} has no support for MTP modules; want a model of {}",
                  model.config.architecture, Joined(MtpArchitectures(), " or "));
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

Setup Prepare(const TrainingOptions& options, Progress& progress) {
  Setup setup{.options = options};
  CheckSchedule(options.trainer.schedule);
  CheckMtpOnly(options, ReadTrainedConfig(options));
  setup.files = PrepareModelFiles(options);
  setup.options.layout = LayoutOf(options, setup.files.config);
  setup.resumed = CheckpointToResume(options);
  if (setup.resumed) CheckSameConfig(*setup.resumed, setup.files.files.front());
  setup.documents = ReadCorpus(options, setup.files);
  setup.options.losses.mtp_layers = setup.files.mtp_layers;
  setup.options.trainer.files.copied = setup.files.files;
  const int64_t pass_tokens = options.trainer.rows_per_pass * options.packing.length;
  setup.link_floats = static_cast<size_t>(pass_tokens * setup.files.config.hidden);
  setup.exchange = {.tokens = pass_tokens, .synchronous = options.synchronous};
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

constexpr size_t kSlack = 4096;  // bytes for alignment

size_t BytesPerRank(const Setup& setup) {
  const Layout& layout = setup.options.layout;
  const size_t bytes = LayoutRanks::BytesPerRank(layout) + kSlack +
                       LearnerLinks::BytesPerRank(layout, setup.link_floats);
  return bytes + ExpertExchange::BytesPerRank(layout.ep, setup.files.config, setup.exchange);
}

// Main function of one rank. Only rank 0 reports progress.
void RunRank(const Setup& setup, int rank, const std::shared_ptr<SharedArena>& arena,
             const std::function<bool()>& stop, Progress& progress, TrainingEnd* end) {
  const TrainingOptions& options = setup.options;
  const auto ranks = LayoutRanks::Create(arena, options.layout, rank, {.timeout = options.timeout});
  ThreadPool pool(options.threads);
  const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), setup.files.config,
                                setup.exchange, pool);
  const LearnerLinks links(*ranks, setup.link_floats, {.timeout = options.timeout}, setup.sums);
  Model<float> model(setup.files.config, options.losses, ranks->layer_ranks(exchange.ranks()), pool,
                     ranks->place.Stage(setup.files.config), options.products);
  if (!setup.resumed) {
    // Initialises all parameters first, because Load does not set MTP modules that the checkpoint
    // lacks.
    model.Initialise(options.seed, options.init_deviation);
    if (!options.init_from.empty()) model.Load(options.init_from);
  }
  Learner learner(model, options.learner, links.ranks());
  Corpus corpus(setup.documents, options.packing);
  Trainer trainer(learner, corpus, options.trainer, ranks->trainer_ranks(), pool);
  if (setup.resumed) trainer.Resume(*setup.resumed);

  const bool first = rank == 0;
  std::optional<StepLog> log;
  if (first) {
    const auto say = [&](const std::string& text) { progress.Say(text); };
    log.emplace(options.trainer.output / "log.jsonl", trainer.state().step, say);
    if (setup.resumed) {
      say(fmt::format("resuming from {}, after step {}", setup.resumed->string(),
                      trainer.state().step));
    }
    progress.Begin(options.trainer.schedule.steps, trainer.state().step);
  }
  trainer.Run(
      [&](const StepReport& report) {
        if (!first) return;
        log->Write(report);
        progress.Step(report);
      },
      stop,
      [&](const std::string& warning) {
        if (first) progress.Say(warning);
      });
  if (!first) return;
  end->step = trainer.state().step;
  end->stopped = end->step < options.trainer.schedule.steps;
  end->checkpoint = CheckpointPath(options.trainer.output, end->step);
}

}  // namespace

TrainingEnd RunTraining(const TrainingOptions& options, const std::function<bool()>& stop,
                        Progress& progress) {
  Setup setup = Prepare(options, progress);
  const Layout& layout = setup.options.layout;
  if (options.early_sums && layout.ranks() > 1) {
    setup.sums = SharedArena::Create(layout.ranks(), LayoutRanks::BytesPerRank(layout) + kSlack);
  }
  TrainingEnd end;
  RunRankThreads(layout.ranks(), BytesPerRank(setup),
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   RunRank(setup, rank, arena, stop, progress, &end);
                 });
  progress.Finish();
  return end;
}

std::string ScheduleText(const TrainingOptions& options) {
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
