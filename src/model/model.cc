#include "model/model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/device_store.h"
#include "core/error.h"
#include "core/format.h"
#include "core/phase_times.h"
#include "eplb/init_location.h"
#include "model/attached_timer.h"
#include "model/complete_options.h"
#include "model/decoder.h"
#include "model/device_sampler.h"
#include "model/families/family.h"
#include "model/layers/context.h"
#include "model/micro_batches.h"
#include "model/movable_layers.h"
#include "model/pass.h"
#include "model/rank_device.h"
#include "model/rope.h"
#include "model/stream_copies.h"
#include "model/weights/placing.h"
#include "model/weights/routers.h"
#include "moe/dispatchers/exchange_memory.h"
#include "moe/layer.h"
#include "profile/profiler.h"

namespace switchyard {
namespace {

// Checks that all ranks have the same placements, before weights are loaded. Loading uses as many
// threads as compute, up to kMaxLoadThreads.
ModelOptions CheckPlacements(ModelOptions options, RankComm& comm, const ThreadPool& pool) {
  constexpr int kMaxLoadThreads = 16;  // more threads do not read faster
  CheckSamePlacements(options.load.placements, options.moe.init_expert_location, *comm.tp);
  options.load.threads = std::min(pool.num_threads(), kMaxLoadThreads);
  if (options.weight_store) options.load.read_data = !options.weight_store->filled();
  return options;
}

}  // namespace

struct Model::Impl {
  ModelConfig config;
  ModelOptions options;
  RankComm& comm;
  ThreadPool& pool;
  std::unique_ptr<RankDevice> rank_device;
  kernels::Device& device;
  const AttachedTimer timer;
  const RankGroups& groups;
  const std::unique_ptr<StageRows> stage_rows;  // null: there is one stage
  ModelWeights weights;                         // without weights that MoE layers have taken
  std::shared_ptr<const ModelWeights> kept_weights;
  Tensor cos_sin;  // [context_length, rotary_dim]; undefined: no rotary embedding
  const LayerContext context;
  std::shared_ptr<MoeBackend> moe_backend;
  std::vector<std::unique_ptr<MoeLayer>> moe;  // one for each layer; null for dense ones
  std::unique_ptr<MovableLayers> movable;      // or null
  const Decoder decoder;
  DeviceSampler sampler;
  Activations hidden;  // [max_tokens, H] if they are kept: an output, which the next batch replaces
  std::vector<const float*> hidden_inputs;    // addresses by which recorded passes are keyed
  std::vector<std::unique_ptr<Pass>> passes;  // one, or two for two-batch overlap
  std::vector<std::vector<schedule::Operation>> plain;       // by depth (PlainSchedules)
  std::vector<schedule::Operation> two_prefill, two_decode;  // of two passes, if there are two
  const EndOfWaits end_of_waits{*rank_device};               // last: acts before buffers are freed

  Impl(const std::filesystem::path& dir, ModelConfig model_config, ModelOptions model_options,
       RankComm& rank_comm, ThreadPool& threads)
      : config(std::move(model_config)),
        options(CheckPlacements(
            CompleteOptions(config, std::move(model_options), rank_comm.mesh.shape()), rank_comm,
            threads)),
        comm(rank_comm),
        pool(threads),
        rank_device(MakeRankDevice(config, options, comm, pool)),
        device(rank_device->device()),
        timer(options.profiler, device),
        groups(rank_device->groups()),
        stage_rows(options.stage_rows ? rank_device->MakeStageRows(*options.stage_rows) : nullptr),
        weights(TakeWeights(dir)),
        cos_sin(PlaceTable(device, BuildCosSin(config.rope, options.context_length))),
        context{config,
                comm.mesh,
                cos_sin,
                groups,
                device,
                PlaceTable(device, BuildQueryScale(config.attention, options.context_length)),
                PlaceTable(device, config.window_rope
                                       ? BuildCosSin(*config.window_rope, options.context_length)
                                       : Tensor()),
                stage_rows.get()},
        moe(config.layers.size()),
        decoder(context, weights, moe, [this] { BeginLayer(); }) {
    MakeSchedules();
    for (int i = 0; i < options.moe.passes; ++i)
      passes.push_back(std::make_unique<Pass>(i, context, options.max_pass_tokens,
                                              decoder.ScratchFloats(options.max_pass_tokens)));
    if (options.keeps_hidden) hidden.Reserve(device, options.max_tokens * HiddenWidth());
    FinishRouters(config, &weights);
    if (device.is_cpu()) kept_weights = CopyToKeep(weights, options.movable_experts);
    if (options.movable_experts) options.weights.reset();  // experts that leave are then freed
    PlacingInStore placing(device, options.weight_store);
    UploadWeights(device, weights);
    ReportPlacing(config, comm.mesh, options, weights.bytes_mapped);
    if (config.eagle)
      ShareVocabulary(*config.eagle, config.reduced_head != nullptr,
                      options.target ? &options.target->impl_->weights : nullptr, &weights);
    if (config.has_moe()) MakeMoeLayers(dir);
    placing.Finish();
    EndPhase("weights");
  }

  ModelWeights TakeWeights(const std::filesystem::path& dir) const {
    EndPhase("device and exchange");
    if (options.weights) return *options.weights;
    return LoadWeights(dir, config, comm.mesh, BeforeStreamCopies(config, comm.mesh, options));
  }

  void EndPhase(const char* name) const {
    if (options.times) options.times->End(name);
  }
  std::vector<kernels::DeviceArray> DeviceWeights() const {
    if (device.is_cpu()) return {};
    std::vector<kernels::DeviceArray> arrays = PlacedArrays(weights);
    for (size_t i = 0; i < moe.size(); ++i) {
      if (!moe[i]) continue;
      for (kernels::DeviceArray& array : moe[i]->Arrays()) {
        array.name = fmt::format("layers.{}.moe.{}", i, array.name);
        arrays.push_back(std::move(array));
      }
    }
    return arrays;
  }

  // Elements of a row of `hidden`.
  int64_t HiddenWidth() const {
    if (options.kept_inputs.empty()) return config.hidden_row_width();
    return config.residual_width() * std::ssize(options.kept_inputs);
  }
  void BeginLayer() {
    comm.memory->Beat();
    comm.memory->TestFault("layer");
    if (device.is_cpu()) comm.memory->CheckAborted();  // a layer may take long
  }

  void MakeSchedules() {
    plain = PlainSchedules(config, options.moe);
    if (!options.two_batch_overlap) return;
    schedule::ServeShape shape = ServeShapeOf(config, options.moe, /*two_batches=*/true);
    two_prefill = CheckedPlan(shape);
    shape.mode = schedule::Mode::kDecode;
    two_decode = CheckedPlan(shape);
  }

  void MakeMoeLayers(const std::filesystem::path& dir) {
    moe_backend = rank_device->MakeMoe(options, MoeShapeOf(config, options.max_pass_tokens));
    moe_backend->Observe(options.observer);
    moe_backend->ChooseReplicasBy(options.chooser);
    MoeLayerConfig layer_config{.hidden = config.expert_row_width(),
                                .router_width = moe_backend->shape().router_width,
                                .router = config.moe->router,
                                .activation = config.activation,
                                .swiglu_alpha = config.swiglu_alpha,
                                .swiglu_limit = config.swiglu_limit};
    for (size_t i = 0; i < moe.size(); ++i) {
      if (!config.layers[i].moe) continue;
      layer_config.placement = options.load.placements[i];
      layer_config.layer = static_cast<int>(i);
      // Rows of a router by token ids have the id as their last element.
      layer_config.router.by_token = config.layers[i].by_token;
      layer_config.router_width =
          config.layers[i].by_token ? config.hidden + 1 : moe_backend->shape().router_width;
      moe[i] = std::make_unique<MoeLayer>(layer_config, std::exchange(weights.layers[i].moe, {}),
                                          moe_backend);
      if (!device.is_cpu()) weights.layers[i].owned.clear();  // the layer has copied them
      ReportPlacing(config, comm.mesh, options, weights.bytes_mapped);
    }
    KeepForStreams(moe, dir, config, comm.mesh, options, weights.bytes_mapped);
    for (const auto& pass : passes) pass->moe = moe_backend->MakeState(pass->index());
    if (options.movable_experts) {
      moe_backend->ReserveMoves(options.movable_layers);
      MakeMovable(dir);
    }
  }

  void MakeMovable(const std::filesystem::path& dir) {
    std::map<int, MoeLayer*> layers;
    for (size_t i = 0; i < moe.size(); ++i)
      if (moe[i]) layers[static_cast<int>(i)] = moe[i].get();
    movable = std::make_unique<MovableLayers>(
        std::move(layers), std::make_unique<ExpertLoader>(dir, config, comm.mesh, options.load),
        comm.mesh, /*same_formats=*/!options.moe.host_experts);
  }

  // The logits of a batch on the device: of `rows` rows, then of `more` rows of a second
  // micro-batch, which are not adjacent if the first one is padded.
  struct DeviceLogits {
    const float* data = nullptr;  // [rows, vocab]
    int64_t rows = 0;
    const float* more_data = nullptr;  // [more, vocab]
    int64_t more = 0;
  };

  DeviceLogits Run(const ForwardBatch& batch, KvStorage& kv) {
    const std::vector<int64_t> first_rows =
        passes.size() > 1 ? SplitRows(batch, {.threshold = options.tbo_threshold,
                                              .min_rows = options.tbo_min_tokens,
                                              .max_in_one = options.max_pass_tokens})
                          : std::vector<int64_t>();
    for (const auto& pass : passes) {
      pass->used = pass == passes.front() || !first_rows.empty();
      if (pass->moe) pass->moe->overlaps = !first_rows.empty();
    }
    const DeviceLogits logits =
        first_rows.empty() ? RunInOne(batch, kv) : RunInTwo(batch, first_rows, kv);
    for (const auto& pass : passes)
      if (pass->used && pass->moe) pass->moe->EndPass();
    return logits;
  }

  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv) {
    CHECK(batch.draws.empty() || config.has_head);
    for (const auto& pass : passes) pass->running = true;
    std::span<const float> logits;
    if (batch.draws.empty()) {
      logits = ToHost(Run(batch, kv));
    } else {
      Draw(batch, kv);
      const auto result = sampler.ReceiveLast();  // copies of earlier batches stay pending
      passes[0]->drawn = result.tokens;
      passes[0]->best = result.best;
    }
    for (const auto& pass : passes) pass->running = false;
    ReportRouting(batch.pass);
    return aborted() ? std::span<const float>() : logits;
  }

  void AbortPass(uint64_t number) {
    for (const auto& pass : passes)
      if (pass->running && pass->used && pass->number == number) pass->aborted = true;
  }
  // The micro-batches of a batch have the same pass number, so all of them are aborted, or none.
  bool aborted() const { return passes[0]->aborted; }
  void ReportRouting(uint64_t last) {
    for (const auto& pass : passes)
      if (pass->moe) pass->moe->ReportRouting(last);
  }

  void Launch(const ForwardBatch& batch, KvStorage& kv) {
    if (config.has_head) {
      Draw(batch, kv);
    } else {
      CHECK(batch.draws.empty());
      Run(batch, kv);
      sampler.Send(device, batch.pass);  // no tokens: the end of the pass
    }
  }
  std::span<const int32_t> Collect() {
    const DeviceSampler::Result result = sampler.Receive();
    ReportRouting(result.pass);
    return result.tokens;
  }

  // Enqueues a pass and the sampling of its tokens.
  void Draw(const ForwardBatch& batch, KvStorage& kv) {
    const DeviceLogits logits = Run(batch, kv);
    CHECK_EQ(std::ssize(batch.draws), logits.rows + logits.more);
    sampler.Begin(*rank_device, batch.draws, config.output_width(),
                  batch.masks ? &batch.masks() : nullptr, batch.best_tokens);
    sampler.Sample(*rank_device, logits.data, 0, logits.rows);
    sampler.Sample(*rank_device, logits.more_data, logits.rows, logits.more);
    sampler.Send(device, batch.pass);
  }

  void KeepHidden(Pass& p) {
    if (!options.keeps_hidden) return;
    p.kept_inputs = options.kept_inputs;
    (p.kept_inputs.empty() ? p.hidden_out : p.inputs_out) =
        hidden.data() + p.place.first_row * HiddenWidth();
  }

  // The part of a recording key that stands for a pass's sizes. `more`: rows of the second
  // micro-batch. In a draft model, which runs one micro-batch, `more` is the number of logit rows
  // if only some rows have logits. Else 0. `inputs`: result of HiddenInputIndex.
  static uint64_t SizeOf(int64_t rows, int64_t more, uint64_t inputs) {
    CHECK(rows < (1 << 15) && more < (1 << 15));
    return static_cast<uint64_t>(rows) | static_cast<uint64_t>(more) << 15 | inputs << 30;
  }

  // The index of the address of the batch's hidden rows among the addresses so far. A recorded pass
  // reads hidden rows at a fixed address, so this index is a part of its key. A batch with index
  // kMaxInputs is not recorded.
  static constexpr uint64_t kMaxInputs = 4;
  uint64_t HiddenInputIndex(const ForwardBatch& batch) {
    if (batch.hidden == nullptr) return 0;
    const auto known = std::ranges::find(hidden_inputs, batch.hidden);
    const auto index = static_cast<uint64_t>(known - hidden_inputs.begin());
    if (known == hidden_inputs.end() && index < kMaxInputs) hidden_inputs.push_back(batch.hidden);
    return index;
  }

  // Pads decode batches to a recorded size; runs all other batches as they are.
  DeviceLogits RunInOne(const ForwardBatch& batch, KvStorage& kv) {
    Pass& p = *passes[0];
    const int64_t recorded = RecordedTokens();
    bool record = recorded > 0 && batch.may_record && IsPlainDecode(batch, recorded);
    const uint64_t inputs = record ? HiddenInputIndex(batch) : 0;
    record = record && inputs < kMaxInputs;
    p.Begin(
        record ? p.padded.Pad(batch, kv.num_pages(), kv.page_size(), config.has_states()) : batch,
        kv, sampler.tokens());
    KeepHidden(p);
    if (p.moe) p.moe->BeginPass(batch.num_tokens(), 0);
    ReserveLogits(p.group_logit_rows);
    const int64_t more = HasAllLogits(batch) ? 0 : p.rows.logit_rows;
    Pass* const only[] = {&p};
    if (record) AgreeOnSelection(only);
    Execute(plain[p.depth], only, p.group_logit_rows,
            record ? p.RecordingKey(SizeOf(p.rows.tokens, more, inputs)) : 0);
    return {.data = p.head.logits.data(), .rows = std::ssize(batch.logit_rows)};
  }

  // Runs a batch as two micro-batches (two-batch overlap). Results are in the first pass.
  DeviceLogits RunInTwo(const ForwardBatch& batch, std::span<const int64_t> first_rows,
                        KvStorage& kv) {
    CHECK(!batch.only_logit_rows);
    const MicroBatches parts(batch, first_rows, comm.mesh.dp_rank());
    Pass &first = *passes[0], &second = *passes[1];
    // The first part has half of the rows, rounded up.
    const int64_t recorded = RecordedTokens();
    const bool decode = IsDecode(batch);
    // The padding rows of the first part would overwrite the hidden rows of the second one.
    const bool record = recorded > 0 && !options.keeps_hidden && HasAllLogits(batch) &&
                        IsPlainDecode(batch, std::numeric_limits<int64_t>::max()) &&
                        PaddedTokens(std::ranges::max(first_rows)) <= recorded;
    const auto begin = [&](Pass& p, const ForwardBatch& part, const MicroBatchPlace& place) {
      p.Begin(record ? p.padded.Pad(part, kv.num_pages(), kv.page_size()) : part, kv,
              sampler.tokens(), place);
      KeepHidden(p);
      p.moe->BeginPass(part.num_tokens(), place.first_row);
    };
    begin(first, parts.first, {});
    begin(second, parts.second, {.index = 1, .first_row = first_rows[comm.mesh.dp_rank()]});
    std::vector<int64_t> logit_rows = batch.group_logit_rows;  // [dp]
    if (logit_rows.empty()) logit_rows.push_back(std::ssize(batch.logit_rows));
    if (record) std::ranges::fill(logit_rows, first.rows.tokens + second.rows.tokens);
    ReserveLogits(logit_rows);
    Pass* const both[] = {&first, &second};
    if (record) AgreeOnSelection(both);
    const uint64_t key =
        record ? first.RecordingKey(SizeOf(first.rows.tokens, second.rows.tokens, 0)) : 0;
    second.moe->clocked = first.moe->clocked;
    Execute(decode ? two_decode : two_prefill, both, logit_rows, key);
    first.routed.insert(first.routed.end(), second.routed.begin(), second.routed.end());
    const float* logits = first.head.logits.data();
    return {.data = logits,
            .rows = std::ssize(parts.first.logit_rows),
            .more_data = logits + first.rows.logit_rows * config.output_width(),
            .more = std::ssize(parts.second.logit_rows)};
  }

  // Sets Pass::selects_keys of the micro-batches of a recorded pass to the same value. All groups
  // record in the same pass, as NCCL requires, and a group does not know the lengths of the others'
  // sequences. So with several groups recorded passes always select.
  void AgreeOnSelection(std::span<Pass* const> parts) const {
    if (config.attention.index_topk == 0) return;
    const bool selects = comm.mesh.dp() > 1 || std::ranges::any_of(parts, &Pass::selects_keys);
    for (Pass* const part : parts) part->selects_keys = selects;
  }

  // Runs all operations of the micro-batches. A pass with a key is recorded as a CUDA graph.
  void Execute(std::span<const schedule::Operation> list, std::span<Pass* const> parts,
               std::span<const int64_t> logit_rows, uint64_t key) {
    Decoder::Watch watch{.profiler = profile::IfRecording(options.profiler)};
    if (key != 0) return RunGraph(list, parts, logit_rows, key, watch);
    if (parts[0]->running && options.before_operation)
      watch.before = [&](const Pass& pass, const schedule::Operation& operation) {
        options.before_operation(pass.number, static_cast<int>(parts.size()), operation);
      };
    device.Run(0, [&] { decoder.Run(list, parts, logit_rows, watch); });
  }

  // A profile has one span for the whole graph, since its operations are not run one by one. The
  // links of a pipeline stage are its first and its last operation. They are not captured, because
  // they wait for other stages.
  void RunGraph(std::span<const schedule::Operation> list, std::span<Pass* const> parts,
                std::span<const int64_t> logit_rows, uint64_t key, const Decoder::Watch& watch) {
    const bool receives = !config.has_embedding, sends = !config.has_head;
    CHECK((!receives && !sends) || parts.size() == 1);
    int64_t rows = 0;
    for (const Pass* part : parts) rows += part->rows.tokens;
    if (receives) decoder.RunLink(list.front(), *parts[0], watch);
    {
      const profile::Span graph(watch.profiler, {.name = "graph",
                                                 .track = profile::Track::kPass,
                                                 .micro_batch = 0,
                                                 .rows = rows,
                                                 .columns = config.hidden});
      const size_t begin = receives ? 1 : 0, end = list.size() - (sends ? 1 : 0);
      const auto inner = list.subspan(begin, end - begin);
      device.Run(key, [&] { decoder.Run(inner, parts, logit_rows); });
    }
    if (sends) decoder.RunLink(list.back(), *parts[0], watch);
  }

  // Maximum rows of a recorded pass; 0: recording is disabled. Ranks on CPUs do not pad. So beside
  // them, a padded pass has one round of exchange, as the pass without padding has.
  int64_t RecordedTokens() const {
    if (!options.gpu || !options.gpu->graphs) return 0;
    const int64_t most = std::min(options.gpu->graph_max_tokens, options.max_pass_tokens);
    return options.moe.host_experts ? std::min(most, options.moe.long_seq_per_round_tokens) : most;
  }

  // Buffers are sized by the rows of the largest group, so all groups record in the same pass, as
  // NCCL requires. Reserves for the largest recorded pass in advance, because a later reallocation
  // would discard the recorded passes.
  void ReserveLogits(std::vector<int64_t> group_rows) {
    const int64_t recorded = options.moe.passes * RecordedTokens();
    if (!config.has_head) return;
    for (int64_t& count : group_rows) count = std::max(count, recorded);
    decoder.ReserveLogits(group_rows, *passes[0]);
  }

  std::span<const float> ToHost(const DeviceLogits& logits) {
    const int64_t width = config.output_width(), first = logits.rows * width;
    const int64_t all = first + logits.more * width;
    if (!config.has_head) {
      device.Synchronize();
      return {};
    }
    if (device.is_cpu()) return {logits.data, static_cast<size_t>(all)};  // never padded
    if (all == 0 && options.cache_store)
      device.Synchronize();  // the cache has the pass's rows then
    std::vector<float>& host = passes[0]->host_logits;
    host.resize(all);
    device.CopyOut(host.data(), logits.data, first * sizeof(float));
    if (logits.more > 0)
      device.CopyOut(host.data() + first, logits.more_data, logits.more * width * sizeof(float));
    return host;
  }
};

Model::Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options,
             RankComm& comm, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(dir, std::move(config), std::move(options), comm, pool)) {}
Model::~Model() = default;

KvStorage Model::MakeCache(int64_t num_pages, int32_t page_size, DType dtype) {
  Impl& m = *impl_;
  if (m.device.is_cpu()) return KvStorage(m.config, m.comm.mesh, num_pages, page_size, dtype);
  if (m.options.cache_store)
    m.device.SetCacheStore(m.options.cache_store, m.options.before_cache_release);
  return KvStorage(m.config, m.comm.mesh, num_pages, page_size, dtype, m.device);
}
StateStorage Model::MakeStates(int64_t slots) {
  const Impl& m = *impl_;
  if (m.device.is_cpu()) return {m.config, m.comm.mesh, slots};
  return {m.config, m.comm.mesh, slots, m.device};
}
std::span<const float> Model::Forward(const ForwardBatch& batch, KvStorage& kv) {
  return impl_->Forward(batch, kv);
}
std::shared_ptr<const ModelWeights> Model::weights() const { return impl_->kept_weights; }
std::vector<kernels::DeviceArray> Model::device_weights() const { return impl_->DeviceWeights(); }
std::span<const int32_t> Model::routed_experts() const { return impl_->passes[0]->routed; }
const float* Model::hidden() const { return impl_->hidden.data(); }
std::vector<int32_t> Model::RouterFaults(const ForwardBatch& batch, const KvStorage& kv) const {
  return kv.RouterFaultsOf(batch.sequences, impl_->device);
}
Communicator& Model::attention_group() const { return *impl_->comm.attn_tp; }
bool Model::draws() const { return impl_->rank_device->samples(); }
std::span<const int32_t> Model::drawn() const { return impl_->passes[0]->drawn; }
kernels::BestTokenRows Model::best() const { return impl_->passes[0]->best; }
void Model::SetTokens(std::span<const int32_t> tokens) {
  CHECK_EQ(std::ssize(tokens), config().output_width());
  if (draws()) impl_->sampler.SetIds(impl_->device, tokens);
}
void Model::EndWaits() { impl_->rank_device->EndWaits(); }
kernels::Device& Model::device() { return impl_->device; }
void Model::Launch(const ForwardBatch& batch, KvStorage& kv) {
  CHECK(!batch.routed_experts && batch.best_tokens == 0);
  impl_->Launch(batch, kv);
}
std::span<const int32_t> Model::Collect() { return impl_->Collect(); }
void Model::AbortPass(uint64_t number) { impl_->AbortPass(number); }
bool Model::aborted() const { return impl_->aborted(); }
MovableExperts* Model::movable_experts() { return impl_->movable.get(); }
const ModelConfig& Model::config() const { return impl_->config; }

}  // namespace switchyard
