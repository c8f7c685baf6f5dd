#include "plan/layout_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "engine/pipeline/stage_links.h"
#include "model/stages.h"
#include "model/state_storage.h"
#include "plan/search.h"

namespace switchyard::plan {

double PassTime::latency() const {
  return std::accumulate(stages.begin(), stages.end(),
                         transfer * static_cast<double>(stages.size() - 1),
                         [](double sum, const StepTime& stage) { return sum + stage.seconds; });
}

double PassTime::slowest() const {
  return std::ranges::max_element(stages, {}, &StepTime::seconds)->seconds;
}

std::vector<schedule::LayerRange> LayersOfStages(const Question& q, const Layout& layout,
                                                 const EnginePlan& plan) {
  if (layout.mesh.pp == 1) return {{.end = static_cast<int>(q.model.num_layers())}};
  return plan.stages.empty() ? StagesOf(ConfigOf(layout, q.config), q.model) : plan.stages;
}

std::vector<ModelConfig> ModelsOfStages(const Question& q, const Layout& layout,
                                        const EnginePlan& plan) {
  if (layout.mesh.pp == 1) return {q.model};
  std::vector<ModelConfig> models;
  for (const schedule::LayerRange& range : LayersOfStages(q, layout, plan))
    models.push_back(StageConfigOf(q.model, range));
  return models;
}

// All ranks of an engine are ranks of its stages, which have equal sizes.
Ranks LayoutCosts::RanksOf(const Question& q, const Layout& layout, const EnginePlan& plan,
                           bool decode) const {
  const ModelOptions options = MakeModelOptions(ConfigOf(layout, q.config), plan);
  Ranks ranks = {.mesh = layout.mesh,
                 .a2a = layout.a2a,
                 .low_latency = decode && layout.mode != "normal",
                 .redundant = layout.redundant,
                 .tbo = layout.tbo,
                 .sbo = layout.sbo,
                 .tbo_min_tokens = options.tbo_min_tokens,
                 .row_dtype = plan.dtype,
                 .kv_dtype = plan.kv_dtype,
                 .ranks_of_host = std::min(layout.mesh.tp, q.cluster.per_node),
                 .nics = std::max(1, q.cluster.nics),
                 .nic_rate = q.cluster.nics * q.cluster.nic_gbit * 1e9 / 8};
  ranks.mesh.pp = 1;
  return ranks;
}

void CheckHasCosts(const ModelConfig& model) {
  if (model.has_linear())
    throw Invalid("{}: there are no costs of layers with recurrent states", model.architecture);
}

LayoutCosts::Stage::Stage(ModelConfig stage, const LayoutCosts& c, const Routing& routing)
    : model(std::move(stage)),
      prefill(model, c.formats_, c.table_, c.ranks_, routing),
      decode(model, c.formats_, c.table_, c.decode_ranks_, routing) {}

LayoutCosts::LayoutCosts(const Question& q, const Layout& layout, const EnginePlan& plan)
    : formats_(FormatsOf(q.model, q.cluster.cuda, plan.packs_experts)),
      table_(q.cluster.cuda ? q.table : q.table.Shared(1.0 / layout.mesh.world())),
      ranks_(RanksOf(q, layout, plan, false)),
      decode_ranks_(RanksOf(q, layout, plan, true)),
      in_flight_(PassesInFlight(ConfigOf(layout, q.config))),
      hidden_bytes_(static_cast<double>(q.model.residual_width()) * sizeof(float)) {
  if (q.model.has_linear())
    throw Invalid(
        "{}: there are no costs of layers with recurrent states; a running request has two states "
        "of {:.2f} MiB on each rank",
        q.model.architecture,
        static_cast<double>(StateStorage::BytesPerSlot(q.model, Mesh(layout.mesh, 0))) / (1 << 20));
  for (ModelConfig& model : ModelsOfStages(q, layout, plan))
    stages_.push_back(std::make_unique<Stage>(
        std::move(model), *this,
        Routing{.imbalance = q.load.imbalance, .correlation = q.load.correlation}));
  for (int stage = 1; stage < stages(); ++stage)
    crosses_ |= stage * layout.mesh.tp % std::max(1, q.cluster.per_node) == 0;
}

// Every rank of a stage sends the rows of its attention group to one rank of the next stage.
double LayoutCosts::SendSeconds(double rows) const {
  const double bytes = rows * hidden_bytes_;
  if (!crosses_) return table_.host.seconds + bytes / table_.host.rate;
  const double nic =
      std::max(1.0, stages_.front()->prefill.nic_rate() / std::max(1, ranks_.ranks_of_host));
  return table_.network.seconds + bytes / nic;
}

PassTime LayoutCosts::PassOf(const StepShape& shape) const {
  PassTime pass;
  const double send = stages() > 1 ? SendSeconds(shape.rows) : 0;
  const bool copies = copies_rows();
  if (!copies) pass.transfer = send;
  for (int stage = 0; stage < stages(); ++stage) {
    const Stage& own = *stages_[stage];
    StepTime time = (shape.decode ? own.decode : own.prefill).Of(shape);
    const int neighbours = (stage > 0 ? 1 : 0) + (stage + 1 < stages() ? 1 : 0);
    if (copies && neighbours > 0) {
      time.seconds += neighbours * send;
      time.work.Add(Part::kStages, Limit::kNetwork, neighbours * send);
    }
    pass.stages.push_back(time);
  }
  return pass;
}

StepTime LayoutCosts::Of(const StepShape& shape) const {
  const PassTime pass = PassOf(shape);
  StepTime time;
  for (const StepTime& stage : pass.stages) time.work.Add(stage.work);
  time.seconds = pass.latency();
  if (const double sent = pass.transfer * (stages() - 1); sent > 0)
    time.work.Add(Part::kStages, Limit::kNetwork, sent);
  return time;
}

StepShape LayoutCosts::DecodeShape(double running, double keys) const {
  const double group = std::ceil(running / decode_ranks_.mesh.dp);
  return {.decode = true, .sequences = group, .rows = group, .keys = keys, .logit_rows = group};
}

StepShape LayoutCosts::PrefillShape(double rows, double prompt) const {
  const double group = std::max(1.0, rows / ranks_.mesh.dp);
  const double sequences = std::max(1.0, group / prompt);
  return {.decode = false,
          .sequences = sequences,
          .rows = group,
          .keys = (prompt + 1) / 2,
          .logit_rows = std::min(sequences, group)};
}

// As the scheduler does: each pass has an equal part of the decoding requests of its group.
LayoutCosts::MicroBatches LayoutCosts::DecodeMicroBatches(double running) const {
  const double dp = decode_ranks_.mesh.dp, group = std::max(1.0, std::ceil(running / dp));
  const double each = std::ceil(group / in_flight_);
  return {.running = each * dp, .passes = std::ceil(group / each)};
}

StepTime LayoutCosts::Decode(double running, double keys) const {
  if (stages() == 1) return Of(DecodeShape(running, keys));
  const MicroBatches parts = DecodeMicroBatches(running);
  const PassTime pass = PassOf(DecodeShape(parts.running, keys));
  const StepTime& slowest = *std::ranges::max_element(pass.stages, {}, &StepTime::seconds);
  // A request's next token starts in the first stage, after the last stage has sent this one.
  const double turn = pass.latency() + result_seconds();
  StepTime time;
  time.work.Add(slowest.work, parts.passes);
  time.seconds = std::max(turn, parts.passes * slowest.seconds);
  time.work.Add(Part::kStages, Limit::kWait, time.seconds - parts.passes * slowest.seconds);
  return time;
}

StepTime LayoutCosts::Prefill(double rows, double prompt) const {
  return Of(PrefillShape(rows, prompt));
}

double LayoutCosts::PrefillSeconds(double rows, double prompt, double passes) const {
  const PassTime pass = PassOf(PrefillShape(rows, prompt));
  return pass.latency() + (passes - 1) * pass.slowest();
}

}  // namespace switchyard::plan
