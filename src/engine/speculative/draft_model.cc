#include "engine/speculative/draft_model.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "engine/pipeline/stage_links.h"
#include "engine/speculative/token_map.h"
#include "kernels/device.h"
#include "model/config_eagle.h"
#include "model/weights.h"
#include "model/weights/draft_vocabulary.h"

namespace switchyard {
namespace {

ModelOptions OptionsOf(const EngineConfig& config, const EnginePlan& plan, int rank,
                       const Model& target, profile::Profiler* profiler,
                       std::shared_ptr<const ModelWeights> weights, StageLinks* links) {
  ModelOptions options = MakeDraftOptions(MakeModelOptions(config, plan, rank), plan.draft_experts);
  options.keeps_hidden = plan.draft->takes_hidden();
  options.target = &target;
  options.profiler = profiler;
  options.weights = std::move(weights);
  if (links) links->WatchWorkOf(&options);
  return options;
}

// Applies --speculative-draft-model-quantization. The head is packed too, unlike with
// --quantization, because drafts may be approximate.
void Quantize(const EngineConfig& config, const ModelConfig& target, bool cuda,
              ModelConfig* draft) {
  constexpr const char* kFlag = "--speculative-draft-model-quantization";
  QuantizationConfig& q = draft->quantization;
  std::string method = config.speculative.draft_quantization;
  if (method.empty() && draft->is_mtp && !cuda && q.none()) method = "w8a8_int8";
  if (method.empty()) return;
  if (!q.method.empty())
    throw Invalid(
        "{} {}: the draft model's checkpoint is quantized already, by {}; leave the flag out",
        kFlag, method, q.method);
  q.rules.clear();
  q.chosen.clear();
  q.ignored.clear();
  if (method != "unquant") {
    try {
      ApplyFlags({.method = method}, &q);
    } catch (const Error& error) {
      throw Invalid("{}: {}", kFlag, error.what());
    }
  }
  for (const SchemeRule& rule : q.rules)
    if (rule.targets.empty())
      q.chosen.push_back({rule.scheme,
                          {{ModulePattern::Kind::kName, "lm_head"},
                           {ModulePattern::Kind::kName, "shared_head.head"}}});
  q.bfloat16_rows = target.quantization.bfloat16_rows;
  q.int8_group_rows = target.quantization.int8_group_rows;
  q.fp8_bfloat16_rows = target.quantization.fp8_bfloat16_rows;
  q.stored_layout = target.quantization.stored_layout;
}

// The rows that the draft model's head keeps with --speculative-token-map. An EAGLE head without
// rows of its own gets a copy of those of the target.
std::shared_ptr<const ReducedHead> RowsToKeep(const EngineConfig& config, const ModelConfig& target,
                                              const ModelConfig& draft) {
  const std::string& path = config.speculative.token_map;
  if (draft.eagle && draft.eagle->draft_vocab > 0)
    throw Invalid(
        "--speculative-token-map {}: the head in {} has the rows of {} tokens only, by its "
        "draft_vocab_size; leave the flag out",
        path, DraftPath(config).string(), draft.eagle->draft_vocab);
  auto head = std::make_shared<ReducedHead>();
  head->tokens = ReadTokenMap(path, target.vocab_size);
  if (!draft.eagle || draft.eagle->own_head) return head;
  auto owner = std::make_shared<ModelConfig>(target);
  // Rules of --speculative-draft-model-quantization, which Quantize has set.
  if (!config.speculative.draft_quantization.empty())
    owner->quantization.chosen.insert(owner->quantization.chosen.begin(),
                                      draft.quantization.chosen.begin(),
                                      draft.quantization.chosen.end());
  head->owner = std::move(owner);
  head->owner_dir = config.model_path;
  return head;
}

// Applies --speculative-token-map.
void ReduceHead(const EngineConfig& config, const ModelConfig& target, ModelConfig* draft) {
  draft->reduced_head = RowsToKeep(config, target, *draft);
  if (config.load_format == "dummy") return;
  try {
    CheckReducedHead(DraftPath(config), *draft);
  } catch (const Error& error) {
    // Plans need no weight files. Missing ones are reported before they are loaded.
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
}

// Whether MTP layers that are trained for it draft one after another: in chains on CPUs. Else the
// first one makes all drafts.
bool DraftsByDepth(const EngineConfig& config, bool cuda) {
  return !cuda && config.mesh.pp == 1 && config.speculative.eagle_topk == 1;
}

void CheckDepths(const EngineConfig& config, const ModelConfig& draft) {
  const SpeculativeOptions& options = config.speculative;
  if (draft.mtp_depths == 1) return;
  const DraftLimits limits = LimitsOf(options, config.mesh.pp);
  if (limits.adapts || limits.most <= draft.mtp_depths) return;
  throw Invalid("{}: {} has {} MTP layers, and each makes one draft; want at most {} drafts",
                options.num_draft_tokens > 0
                    ? fmt::format("--speculative-num-draft-tokens {}", options.num_draft_tokens)
                    : fmt::format("--speculative-num-steps {}", options.num_steps),
                draft.architecture, draft.mtp_depths, draft.mtp_depths);
}

}  // namespace

DraftLimits DraftLimitsOf(const EngineConfig& config, const std::optional<ModelConfig>& draft) {
  DraftLimits limits =
      LimitsOf(config.speculative, config.mesh.pp, config.disaggregation_mode == "prefill");
  if (draft && draft->mtp_depths > 1)
    limits.most = std::min(limits.most, static_cast<int32_t>(draft->mtp_depths));
  return limits;
}

std::optional<ModelConfig> ReadDraftConfig(const EngineConfig& config, const ModelConfig& target,
                                           bool cuda) {
  const DraftSource source = SourceOf(config.speculative);
  const bool prefill = config.disaggregation_mode == "prefill";
  std::optional<ModelConfig> draft;
  if (source == DraftSource::kMtp) draft = MtpConfigOf(target, DraftsByDepth(config, cuda));
  if (source == DraftSource::kEagle || source == DraftSource::kEagle3)
    draft = LoadEagleConfig(DraftPath(config), target, source == DraftSource::kEagle3);
  if (source == DraftSource::kStandalone) draft = LoadModelConfig(DraftPath(config));
  if (HasDraftCheckpoint(source)) {
    draft->quantization.bfloat16_rows = target.quantization.bfloat16_rows;
    draft->quantization.int8_group_rows = target.quantization.int8_group_rows;
    draft->quantization.fp8_bfloat16_rows = target.quantization.fp8_bfloat16_rows;
    draft->quantization.stored_layout = target.quantization.stored_layout;
    draft->quantization.cache_scales = target.quantization.cache_scales;
    if (target.quantization.cache_scales && !draft->quantization.other_cache.empty())
      throw Invalid(
          "--speculative-draft-model-path {}: {}, which does not fit --kv-cache-dtype fp8_e4m3; "
          "want scales for float of 8 bits, or --kv-cache-dtype auto",
          DraftPath(config).string(), draft->quantization.other_cache);
    if (draft->vocab_size != target.vocab_size || draft->pooling)
      throw Invalid(
          "--speculative-draft-model-path {}: want a model that generates text with the target's "
          "vocabulary of {} tokens; this one has {}",
          DraftPath(config).string(), target.vocab_size, draft->vocab_size);
  }
  if (draft) Quantize(config, target, cuda, &*draft);
  if (draft && !config.speculative.token_map.empty()) ReduceHead(config, target, &*draft);
  if (draft && !prefill) CheckDepths(config, *draft);
  if (draft && draft->output_width() < config.speculative.eagle_topk)
    throw Invalid("--speculative-eagle-topk {}: the draft model has only {} tokens",
                  config.speculative.eagle_topk, draft->output_width());
  return draft;
}

void CheckDraftCheckpoint(const EngineConfig& config, const ModelConfig& target) {
  std::optional<ModelConfig> draft = ReadDraftConfig(config, target, /*cuda=*/false);
  if (!draft) return;
  if (draft->mtp_depths > 1 && config.device != "cpu") {
    draft->mtp_depths = 1;
    draft->layers.resize(1);
  }
  CheckCheckpoint(DraftPath(config), *draft);
}

std::filesystem::path DraftPath(const EngineConfig& config) {
  const std::string& path = config.speculative.draft_model_path;
  return path.empty() ? config.model_path : std::filesystem::path(path);
}

ModelOptions MakeDraftOptions(ModelOptions target, const DraftExperts& experts) {
  ModelOptions draft = std::move(target);
  MoeOptions& moe = draft.moe;
  moe = ForDraftModel(moe);
  moe.num_redundant_experts = experts.redundant;
  moe.init_expert_location = experts.location;
  moe.combine_rows = "slot";
  moe.waterfill = false;
  draft.observed = Observed::kNothing;
  draft.movable_experts = false;
  draft.two_batch_overlap = false;
  draft.load.progress = nullptr;
  if (draft.gpu) draft.gpu->stage_passes = 0;  // not divided over stages
  return draft;
}

ModelShard DraftShard(const EngineConfig& config, const EnginePlan& plan, int rank) {
  return {DraftPath(config),
          *plan.draft,
          MakeDraftOptions(MakeModelOptions(config, plan, rank), plan.draft_experts),
          config,
          plan,
          rank};
}

DraftModel::DraftModel(const EngineConfig& config, const EnginePlan& plan, Model& target,
                       profile::Profiler* profiler, RankComm& comm, ThreadPool& pool,
                       std::shared_ptr<const ModelWeights> weights, KeptModel* kept,
                       StageLinks* links)
    : target_(target),
      comm_(comm),
      model_(DraftPath(config), *plan.draft,
             OptionsOf(config, plan, comm.mesh.rank(), target, profiler, std::move(weights), links),
             comm, pool),
      vocabulary_(LoadDraftVocabulary(DraftPath(config), *plan.draft,
                                      /*read_data=*/config.load_format != "dummy")),
      kv_(kept->Keep(model_, plan, config.page_size)) {
  if (!vocabulary_.empty()) model_.SetTokens(vocabulary_);
}

std::span<const float> DraftModel::Forward(const ForwardBatch& batch) {
  // On a GPU each model has its own stream. The draft model reads the target's hidden rows, so the
  // target's pass must have ended. Collectives of the two models must not overlap either.
  target_.device().Synchronize();
  const std::span<const float> logits = model_.Forward(batch, kv_);
  model_.device().Synchronize();
  return logits;
}

void DraftModel::Launch(const ForwardBatch& batch) {
  if (launched_ == 0) target_.device().Synchronize();  // see Forward
  ++launched_;
  model_.Launch(batch, kv_);
}

std::span<const int32_t> DraftModel::Collect() {
  const std::span<const int32_t> tokens = model_.Collect();
  if (--launched_ == 0) model_.device().Synchronize();
  return tokens;
}

void DraftModel::ReadTargetHidden(int64_t first_row, int64_t rows, float* to) {
  const int64_t width = hidden_width();
  target_.device().CopyOut(to, target_hidden() + first_row * width, rows * width * sizeof(float));
}

const float* DraftModel::PlaceHidden(std::span<const float> rows) {
  kernels::Device& device = model_.device();
  if (device.is_cpu()) return rows.data();
  if (rows.size() > placed_floats_) {
    placed_floats_ = rows.size();
    placed_ = device.Allocate(rows.size_bytes());
  }
  device.CopyIn(placed_.get(), rows.data(), rows.size_bytes());
  return static_cast<const float*>(placed_.get());
}

std::vector<int64_t> DraftModel::GatherCounts(std::span<const int64_t> mine) {
  const Mesh& mesh = comm_.mesh;
  if (mesh.dp() == 1) return {mine.begin(), mine.end()};
  std::vector<int64_t> of_ranks(mine.size() * mesh.tp()), counts;  // of the stage
  comm_.tp->AllGather(mine.data(), of_ranks.data(), mine.size_bytes());
  for (int rank = 0; rank < mesh.tp(); rank += mesh.attn_tp()) {
    const auto own = of_ranks.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
    counts.insert(counts.end(), own, own + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return counts;
}

}  // namespace switchyard
