#include "engine/rank_loop.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/duration.h"
#include "core/error.h"
#include "core/log.h"
#include "core/phase_times.h"
#include "engine/cache_memory.h"
#include "engine/cpu_binding.h"
#include "engine/expert_services.h"
#include "engine/group_exchange.h"
#include "engine/host_memory.h"
#include "engine/kept_pages.h"
#include "engine/kept_weights.h"
#include "engine/leader_messages.h"
#include "engine/load_wait.h"
#include "engine/memory_plan.h"
#include "engine/model_forward.h"
#include "engine/pipeline/stage_links.h"
#include "engine/pipeline/staged_eplb.h"
#include "engine/pipeline/staged_forward.h"
#include "engine/profile_commands.h"
#include "engine/scheduler/batch.h"
#include "engine/scheduler/prefill_pace.h"
#include "engine/speculative/draft_model.h"
#include "engine/speculative/ngram_drafter.h"
#include "engine/step_time_limit.h"
#include "engine/step_timer.h"
#include "engine/weight_checksums.h"
#include "kernels/ops.h"
#include "model/stages.h"

namespace switchyard {

namespace {

// An attention group's share of --pp-max-micro-batch-size; 0: no limit.
int64_t MicroBatchOfGroup(const EngineConfig& config) {
  return config.pp_max_micro_batch_size / config.mesh.dp;
}

RankEngine::Options EngineOptions(const EngineConfig& config, const EnginePlan& plan,
                                  double chunk_keys, const Mesh& mesh, int group,
                                  profile::Profiler* profiler, Drafter* drafter,
                                  PageRecords* records) {
  return {.page_size = config.page_size,
          .num_pages = plan.num_pages,
          .num_states = plan.num_states,
          .held_states = plan.held_states(config),
          .max_running_requests = plan.max_running_requests,
          .chunked_prefill_size = plan.chunked_prefill_size,
          .max_prefill_tokens = config.max_prefill_tokens,
          .policy = ParseSchedulePolicy(config.schedule_policy),
          .conservativeness = config.schedule_conservativeness,
          // With stages, the time between two steps is not that of a pass.
          .target_step_ms = mesh.pp() > 1 ? 0 : config.target_step_ms,
          .max_micro_batch = MicroBatchOfGroup(config),
          .chunk_keys = chunk_keys,
          .priorities = config.priority_scheduling,
          .preemption_threshold = config.preemption_threshold,
          .decode_log_interval = mesh.rank() == 0 ? config.decode_log_interval : 0,
          .enable_radix_cache = !config.disable_radix_cache,
          .records = records,
          .overlap_schedule = !config.disable_overlap_schedule,
          .context_length = plan.context_length,
          .eos_token_ids = plan.model.eos_token_ids,
          .random_seed = config.random_seed,
          .max_drafts = plan.drafts.most,
          .drafter = drafter,
          .all_results = mesh.pp() > 1 && config.disaggregated(),
          .results_have_drafts = mesh.pp() > 1 && HasDraftModel(SourceOf(config.speculative)),
          .tree_depth = plan.drafts.trees() ? plan.drafts.depth : 0,
          .tree_slots = plan.drafts.slots(),
          .adapt_drafts = plan.drafts.adapts,
          .max_forced = plan.max_forced,
          .simulate_acceptance = config.speculative.simulate_acceptance,
          .group = group,
          .log_probabilities = mesh.attn_tp_rank() == 0,  // of the rank that sends (GroupExchange)
          .profiler = profiler};
}

// The source of drafts of speculative decoding, if there is one.
struct Drafting {
  std::unique_ptr<DraftModel> model;
  std::unique_ptr<Drafter> drafter;
};

Drafting MakeDrafting(const EngineConfig& config, const EnginePlan& plan, Model& target,
                      profile::Profiler* profiler, RankComm& comm, ThreadPool& pool,
                      std::shared_ptr<const ModelWeights> weights, KeptModel* kept,
                      StageLinks* links) {
  Drafting made;
  if (plan.drafts.most > 0 && comm.mesh.rank() == 0 && config.disaggregation_mode != "prefill") {
    const std::string shape = plan.drafts.trees()
                                  ? fmt::format(" in trees of depth {} and width {}",
                                                plan.drafts.depth, plan.drafts.width)
                                  : "";
    LOG_INFO("speculative decoding: {}, {} {} drafts{}; steps are not launched ahead",
             config.speculative.algorithm, plan.drafts.adapts ? "up to" : "always",
             plan.drafts.most, shape);
    if (config.speculative.simulate_acceptance >= 0)
      LOG_WARNING("--speculative-simulate-acceptance {}: outputs are wrong",
                  config.speculative.simulate_acceptance);
  }
  if (SourceOf(config.speculative) == DraftSource::kNgram && plan.drafts.most > 0)
    made.drafter = std::make_unique<NgramDrafter>();
  if (!plan.draft) return made;
  made.model = std::make_unique<DraftModel>(config, plan, target, profiler, comm, pool,
                                            std::move(weights), kept, links);
  constexpr int64_t kSavedBytes = int64_t{256} << 20;
  const int64_t saved_rows = std::min<int64_t>(
      plan.max_batch_tokens,  // one pass can process all saved rows of a sequence
      kSavedBytes /
          (plan.draft->target_row_width() * int64_t{sizeof(float)} * plan.max_running_requests));
  made.drafter = std::make_unique<ModelDrafter>(
      *made.model, config.page_size, plan.max_batch_tokens, saved_rows,
      /*ends_early=*/plan.drafts.adapts, plan.model.eos_token_ids,
      TreeShape{.width = plan.drafts.width, .drafts = plan.drafts.most});
  return made;
}

}  // namespace

void LoadAndServe(const EngineConfig& config, const EnginePlan& whole, int rank, int group,
                  std::shared_ptr<SharedArena> arena, const RankLoopIo& io, LoadedWeights weights,
                  KeptWeights* kept) {
  kernels::SelectIsa(config.cpu_isa);
  PhaseTimes times;
  const int64_t resident = ResidentBytes();
  const auto timeout = Milliseconds(config.dist_timeout_seconds);
  const std::span<std::byte> kept_memory = arena->Kept(rank), first_kept = arena->Kept(0);
  const bool keeps_weights = arena->has_epochs();
  const auto comm = RankComm::Create(std::move(arena), config.mesh, rank, {.timeout = timeout});
  times.End("joining");
  comm->memory->TestFault("load");
  const EnginePlan plan = StagePlanOf(config, whole, comm->mesh.pp_rank());
  const CpuBinding binding = BindRank(config, plan, comm->all());
  ThreadPool pool(binding.threads, binding.cpus);
  std::optional<LoadWait> load_wait;
  if (LoadWait::IsNeeded(config, whole)) load_wait.emplace(*comm->memory);
  std::optional<StageLinks> links;
  if (comm->mesh.pp() > 1) links.emplace(*comm, StageLinkSizesOf(config, whole));
  ModelOptions options = MakeModelOptions(config, plan, rank);
  options.load.progress = LoadingProgress(comm->mesh.rank(), io, *comm->memory, keeps_weights,
                                          load_wait ? &*load_wait : nullptr);
  ExpertServices experts(config, plan, whole, *comm);
  experts.AddTo(&options);
  if (links && experts.recorder) experts.recorder->UseLane(links->loads());
  profile::Profiler profiler(rank, comm->mesh.Title());
  options.profiler = &profiler;
  options.keeps_hidden = plan.draft && plan.draft->takes_hidden();
  if (plan.draft) options.kept_inputs = InputsReadBy(*plan.draft, plan.model);
  options.weights = std::move(weights.model);
  KvPublisher publish;  // of a GPU
  options.before_operation =
      KeptPages::PublishTo(kept_memory, first_kept, config, plan, plan.cuda ? &publish : nullptr);
  if (kept->gpu) {
    options.weight_store = &kept->gpu->weights();
    options.cache_store = kept->gpu->cache();
    options.before_cache_release = [gpu = kept->gpu.get()] { gpu->DropCache(); };
  }
  if (links) links->AddTo(&options);
  options.times = &times;
  Model model(config.model_path, plan.ModelOf(config.mesh, rank), std::move(options), *comm, pool);
  if (load_wait) load_wait->Await();  // before other collectives, which have a fixed deadline
  const KeptModel::Lent lent(kept->model, model, comm->mesh);
  std::optional<KeptPages> pages;
  std::optional<ExportedCaches> exported;
  const auto use = [kept](const KvStorage& target, const std::optional<KvStorage>& draft) {
    kept->model.Use(target);
    if (draft) kept->draft.Use(*draft);
  };
  if (plan.cuda && config.disaggregated()) {
    publish = MakeGpuPublisher(kept_memory, model.device());
    exported.emplace(kept_memory, config, plan, comm->mesh, model.device());
    use(exported->kv, exported->draft_kv);
  } else if (!kept_memory.empty()) {
    pages.emplace(kept_memory, config, plan, *comm,
                  !plan.cuda || (kept->gpu && kept->gpu->has_cache()));
    if (!plan.cuda) use(pages->kv, pages->draft_kv);
  }
  KvStorage kv = kept->model.Keep(model, plan, config.page_size);
  if (kept->gpu) kept->gpu->Keep();
  kv.SetStates(pages && !plan.cuda ? pages->states
               : exported          ? exported->states
                                   : model.MakeStates(plan.num_states));
  times.End("cache");
  const ExpertServices::Attached attached(experts, model);
  ModelForward forward(model, kv, experts, plan.host_experts && !comm->mesh.attends());
  CheckedForward checked(forward, *comm->attn_tp, config.page_size);
  ForwardFunction& chosen = config.check_batches ? static_cast<ForwardFunction&>(checked) : forward;
  std::optional<StagedForward> staged;
  if (links) staged.emplace(chosen, *comm, *links, config, whole);
  const Drafting drafting =
      MakeDrafting(config, plan, model, &profiler, *comm, pool, std::move(weights.draft),
                   &kept->draft, links ? &*links : nullptr);
  // Of the whole model, so that all stages plan the same chunks.
  const double chunk_keys = config.dynamic_chunking ? KeysOfWeights(whole.model) : 0;
  RankEngine::Options engine_options =
      EngineOptions(config, plan, chunk_keys, comm->mesh, group, &profiler, drafting.drafter.get(),
                    pages ? &pages->records : nullptr);
  engine_options.state_chunk = whole.state_chunk();  // a stage may have no layer with states
  RankEngine engine(std::move(engine_options),
                    staged ? static_cast<ForwardFunction&>(*staged) : chosen);
  times.End("engine");
  if (links) links->AwaitLoaded();
  comm->all().Barrier("model loaded");
  times.End("other ranks");
  LOG_INFO("ready after {}", times.Describe());
  constexpr double kMiB = 1024.0 * 1024.0;
  if (comm->mesh.tp_rank() == 0)
    LOG_INFO("{}; resident now {:.1f} MiB, {:.1f} before loading", DescribeMemory(config, plan),
             ResidentBytes() / kMiB, resident / kMiB);
  if (comm->mesh.rank() == 0)
    io.send(RankReady{.total_pages = plan.num_pages,
                      .page_size = config.page_size,
                      .max_running_requests = plan.max_running_requests,
                      .context_length = plan.context_length});
  std::vector<KvStorage*> caches = {&kv};
  if (drafting.model) caches.push_back(&drafting.model->cache());
  ServeRequests(engine, *comm, io, experts.recorder.get(), experts.manager.get(), &profiler,
                links ? &*links : nullptr, &model, caches);
}

namespace {

bool HasShutdown(const std::vector<ControlMessage>& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const ControlMessage& message) {
    return std::holds_alternative<Shutdown>(message);
  });
}

// Advances expert moves while there is no batch. The leader's sleep paces all ranks.
void MoveWithoutPass(EplbManager& eplb, bool is_leader) {
  if (is_leader) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  eplb.BeginPass();
}

// The next messages for all ranks. While there is no work, the leader waits for messages. Each
// stage of a pipeline passes them on to the next one, so a stage gets them before the same step as
// the stages before it, but later.
// `working`: whether any group has work. `moving`: whether experts of this stage move; with stages,
// the first one may then be idle, so there is no deadline. `delay`: the time before the next step,
// the same on all ranks.
std::vector<ControlMessage> NextMessages(bool working, bool moving, RankComm& comm,
                                         const RankLoopIo& io, std::chrono::duration<double> delay,
                                         StepTimer& timer, StageLinks* links) {
  Communicator& group = *comm.tp;
  const bool busy = working || moving;
  const bool idle = !(links ? working : busy) || delay.count() > 0;
  if (links) links->TellMoving(moving);
  if (group.rank() != 0) {
    if (links && working) links->AwaitBroadcast(idle);
    return DecodeControl(group.Broadcast({}, idle));
  }
  std::vector<ControlMessage> messages;
  std::string bytes;
  if (comm.mesh.first_stage()) {
    std::function<bool()> others_move;
    if (links && links->moves_experts()) others_move = [links] { return links->OthersMove(); };
    messages = ReceiveMessages(busy, *comm.memory, io, delay, others_move);
    timer.AddLimits(messages);
    if (group.size() > 1 || links) bytes = EncodeControl(messages);
  } else {
    bytes = links->ReceiveControl(idle);
    messages = DecodeControl(bytes);
  }
  if (links && !comm.mesh.last_stage()) links->SendControl(bytes);
  if (links && working) links->BeginBroadcast();
  if (group.size() > 1) group.Broadcast(bytes, idle);
  return messages;
}

// Whether a message needs the counts of all passes so far, or changes what is counted.
bool NeedCounts(const std::vector<ControlMessage>& messages) {
  return std::ranges::any_of(messages, [](const ControlMessage& message) {
    return std::holds_alternative<RecordExperts>(message) ||
           std::holds_alternative<GetExpertLoad>(message) ||
           std::holds_alternative<RebalanceExperts>(message) ||
           std::holds_alternative<GetEplb>(message);
  });
}

// Profiles start and end with a collective of all stages, which gather recorded experts and the
// status of EPLB too.
bool NeedAllStages(const std::vector<ControlMessage>& messages, const ExpertRecorder* recorder,
                   const StageLinks& links) {
  return std::ranges::any_of(messages, [&](const ControlMessage& message) {
    return (links.moves_experts() && (std::holds_alternative<RebalanceExperts>(message) ||
                                      std::holds_alternative<GetEplb>(message))) ||
           (recorder && (std::holds_alternative<RecordExperts>(message) ||
                         std::holds_alternative<GetExpertLoad>(message))) ||
           std::holds_alternative<StartProfile>(message) ||
           std::holds_alternative<StopProfile>(message);
  });
}

// The stage to which a profile assigns the step; nullopt: the step has no forward pass.
std::optional<profile::Stage> StageOf(std::span<const StepCounts> groups) {
  std::optional<profile::Stage> stage;
  for (const StepCounts& group : groups) {
    if (group.tokens > group.decode_tokens) return profile::Stage::kPrefill;
    if (group.tokens > 0) stage = profile::Stage::kDecode;
  }
  return stage;
}

void ExchangeCounts(const StepCounts& mine, bool has_work, GroupExchange& groups,
                    profile::Profiler* profiler) {
  const profile::Span span(profiler, {.name = "exchange counts"});
  groups.Run(mine, has_work);
}

void Post(StepOutputs outputs, GroupExchange& groups, profile::Profiler* profiler) {
  const profile::Span span(profiler, {.name = "send results"});
  groups.Post({std::move(outputs)});
}

// Runs the planned step. `time_limit` gives the time that this rank may compute without a
// heartbeat; null: no limit.
StepOutputs RunStep(RankEngine& engine, const GroupExchange& groups, SymmetricMemory& memory,
                    StepTimeLimit* time_limit) {
  const int64_t rows = StepTimeLimit::RowsOf(groups.counts());
  const auto start = std::chrono::steady_clock::now();
  if (time_limit) memory.SetHeartbeatTimeout(time_limit->Of(rows));
  StepOutputs outputs = engine.Run(groups.counts());
  memory.SetHeartbeatTimeout({});
  if (time_limit) time_limit->Observe(rows, std::chrono::steady_clock::now() - start);
  memory.TestFault("sampled");
  return outputs;
}

// Records the ids of the requests that this rank receives with `messages` or computes now. If the
// rank fails, they show which requests it was processing.
void RecordRequests(const std::vector<ControlMessage>& messages, const RankEngine& engine,
                    SymmetricMemory& memory) {
  std::vector<uint64_t> ids = engine.InFlight();
  for (const ControlMessage& message : messages) {
    if (const auto* request = std::get_if<EngineRequest>(&message)) ids.push_back(request->id);
  }
  memory.RecordRequests(ids);
}

// Points at which a test may make the rank fail. "enter.ID": before a request whose prompt begins
// with token ID enters the engine. "question": before a message that needs an answer, except
// GetStats.
void InjectTestFaults(const std::vector<ControlMessage>& messages, const SymmetricMemory& memory) {
  for (const ControlMessage& message : messages) {
    if (const auto* request = std::get_if<EngineRequest>(&message)) {
      if (!request->input_ids.empty())
        memory.TestFault(fmt::format("enter.{}", request->input_ids.front()));
    } else if (!std::holds_alternative<GetStats>(message)) {
      std::visit(
          [&](const auto& question) {
            if constexpr (requires { question.ticket; }) memory.TestFault("question");
          },
          message);
    }
  }
}

// Tells the front each change of the placement, which new ranks get at the start of the next epoch.
class PlacementNews {
 public:
  // With pipeline stages there are no further epochs.
  PlacementNews(const EplbManager* eplb, const RankComm& comm, const RankLoopIo& io)
      : eplb_(comm.mesh.rank() == 0 && comm.mesh.pp() == 1 ? eplb : nullptr),
        ranks_(comm.mesh.ep()),
        io_(io) {}

  void Send() {
    if (!eplb_ || std::exchange(sent_, eplb_->switches()) == eplb_->switches()) return;
    io_.send(PlacementChanged{.ranks = ranks_, .slots = eplb_->Slots()});
  }

 private:
  const EplbManager* const eplb_;
  const int32_t ranks_;
  const RankLoopIo& io_;
  int64_t sent_ = 0;
};

void Serve(RankEngine& engine, RankComm& comm, const RankLoopIo& io, ExpertRecorder* recorder,
           EplbManager* eplb, profile::Profiler* profiler, StageLinks* links, Model* model,
           std::span<KvStorage* const> caches) {
  GroupExchange groups(comm, io);
  StepTimer timer(engine);
  StepTimeLimit time_limit;
  PlacementNews placement(eplb, comm, io);
  comm.memory->StartHeartbeat();
  for (bool open = true; open;) {
    const std::vector<ControlMessage> messages = NextMessages(
        groups.any_work(), eplb && eplb->busy(), comm, io, engine.step_delay(), timer, links);
    open = !HasShutdown(messages);
    RecordRequests(messages, engine, *comm.memory);
    InjectTestFaults(messages, *comm.memory);
    // While a stage waits in a collective of all stages, it receives no results. Other stages could
    // then wait forever for room to send results. So the results of all passes in flight are
    // collected first.
    if ((engine.launched() && NeedCounts(messages)) ||
        (links && NeedAllStages(messages, recorder, *links)))
      Post(engine.Collect(), groups, profiler);
    groups.Post(engine.Apply(messages));
    if (engine.paused()) timer.Interrupt();
    groups.Post(ApplyToRecorder(messages, recorder, comm.mesh.rank() == 0));
    if (links && links->moves_experts()) {
      const auto layers = static_cast<int>(model->config().num_layers());
      groups.Post(ApplyToStagedEplb(messages, eplb, layers, comm));
    } else {
      groups.Post(ApplyToEplb(messages, eplb, comm.mesh.rank() == 0));
    }
    groups.Post(ApplyToProfiler(messages, profiler, comm));
    groups.Post(ApplyToWeights(messages, model, comm));
    groups.Post(ApplyToCaches(messages, caches, comm));
    profile::Step step(profiler);
    const StepCounts mine = engine.Plan();
    std::vector<uint64_t> ids = engine.InFlight();
    comm.memory->RecordRequests(ids);
    comm.memory->TestFault("plan");
    if (auto announced = engine.Announced(); !announced.empty())
      groups.Post({StepOutputs{std::move(announced)}});
    ExchangeCounts(mine, engine.HasWork(), groups, profiler);
    if (groups.any_work()) {
      timer.Start(groups.counts(), mine);
      // The time of expert migration and of draft passes cannot be derived from the number of rows.
      // On a GPU, a step waits for the pass of the step before, without heartbeats.
      const bool predictable = !eplb && engine.draft_limit() == 0 && !engine.launches();
      Post(RunStep(engine, groups, *comm.memory, predictable ? &time_limit : nullptr), groups,
           profiler);
      timer.Stop(engine.launched());
      if (const auto stage = StageOf(groups.counts()))
        step.End(*stage, mine.tokens, std::move(ids));
    } else if (eplb && eplb->busy()) {
      MoveWithoutPass(*eplb, comm.mesh.rank() == 0);
    }
    placement.Send();
    if (recorder) recorder->TakeSums();
  }
  if (links) Post(engine.Collect(), groups, profiler);
  groups.Run({}, false);         // sends the outputs of the last step
  comm.memory->StopHeartbeat();  // freeing graphs, pages and threads may take long
}

}  // namespace

void ServeRequests(RankEngine& engine, RankComm& comm, const RankLoopIo& io,
                   ExpertRecorder* recorder, EplbManager* eplb, profile::Profiler* profiler,
                   StageLinks* links, Model* model, std::span<KvStorage* const> caches) {
  try {
    Serve(engine, comm, io, recorder, eplb, profiler, links, model, caches);
  } catch (const std::exception& error) {
    comm.memory->Abort(fmt::format("rank {} failed: {}", comm.mesh.rank(), error.what()));
    if (model) model->EndWaits();  // before the caches are freed
    throw;
  }
}

void CheckedForward::Compare(const ForwardBatch& batch) {
  const uint64_t mine = Fingerprint(batch, page_size_);
  std::vector<uint64_t> all(group_.size());
  group_.AllGather(&mine, all.data(), sizeof mine);
  for (int rank = 0; rank < group_.size(); ++rank)
    if (all[rank] != all[0])
      throw Error(ErrorKind::kPeer,
                  fmt::format("ranks 0 and {} of the group planned different batches", rank),
                  "a bug: please report it with the flags and the log");
}

std::span<const float> CheckedForward::Forward(const ForwardBatch& batch) {
  Compare(batch);
  return model_.Forward(batch);
}

void CheckedForward::Launch(const ForwardBatch& batch) {
  Compare(batch);
  model_.Launch(batch);
}

}  // namespace switchyard
