#include "train/run/learner.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "model/families/family.h"
#include "schedule/verify.h"
#include "train/gradients.h"

namespace switchyard::train {

void Balance::Add(std::span<const float> loads) {
  const double most = *std::ranges::max_element(loads);
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  const double even = most > 0.0 ? mean / most : 1.0;
  layers += 1.0;
  sum += even;
  worst = std::min(worst, even);
  dead += static_cast<double>(std::ranges::count(loads, 0.0f));
}

Balance Balance::OfAllStages(Collectives& world, int stages) const {
  std::vector<Balance> ranks(static_cast<size_t>(world.size()));
  world.AllGatherV(this, ranks.data(), std::vector<size_t>(ranks.size(), sizeof *this));
  const double ranks_of_stage = static_cast<double>(world.size()) / stages;
  Balance all;
  for (const Balance& one : ranks) {
    all.layers += one.layers / ranks_of_stage;
    all.sum += one.sum / ranks_of_stage;
    all.worst = std::min(all.worst, one.worst);
    all.dead += one.dead / ranks_of_stage;
    all.replayed += one.replayed / ranks_of_stage;
    all.agreed += one.agreed / ranks_of_stage;
  }
  return all;
}

std::map<std::string, double> Balance::Figures() const {
  if (layers == 0.0) return {};
  std::map<std::string, double> figures = {
      {"balancedness", sum / layers}, {"balancedness_worst", worst}, {"dead_experts", dead}};
  if (replayed > 0.0) figures["routing_agreement"] = agreed / replayed;
  return figures;
}

namespace {

using schedule::Kind;
using schedule::Operation;

// The number in "model.layers.7.…"; -1 if there is none.
int LayerNumber(const std::string& name, const std::string& prefix) {
  int number = -1;
  if (name.starts_with(prefix)) {
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  }
  return number;
}

std::string LayerPrefix(const ModelConfig& config) { return NamesOf(config).layers; }

// In profiles.
const char* NameOf(const Operation& o) {
  if (o.kind == Kind::kForward) return Name(o.phase);
  if (o.kind != Kind::kBackward) return Name(o.kind);
  constexpr const char* kNames[] = {"qkv backward",      "attention backward", "route backward",
                                    "dispatch backward", "shared backward",    "experts backward",
                                    "combine backward",  "down backward",      "finish backward"};
  static_assert(std::size(kNames) == static_cast<size_t>(schedule::Phase::kFinish) + 1);
  return kNames[static_cast<size_t>(o.phase)];
}

}  // namespace

Learner::Learner(Model<float>& model, const LearnerOptions& options, const LearnerRanks& ranks)
    : model_(model), options_(options), ranks_(ranks) {
  CHECK(ranks.stages == 1 || (ranks.link != nullptr && ranks.world != nullptr));
  CHECK_EQ(model.backward().separate_weights, options.order == schedule::Order::kZeroBubble);
  const std::vector<Parameter<float>*> parameters = model.parameters();
  const std::string prefix = LayerPrefix(model.config());
  shape_ = {.order = options.order,
            .stages = ranks.stages,
            .stage = ranks.stage_index,
            .early_sums = ranks.early_sums != nullptr,
            .first_layer = static_cast<int>(model.stage().first_layer)};
  const auto layers = static_cast<size_t>(model.layers());
  for (size_t layer = 0; layer < layers; ++layer) {
    shape_.experts.push_back(model.has_experts(static_cast<int64_t>(layer)));
  }
  parameters_.resize(layers + 1);
  for (Parameter<float>* p : parameters) {
    const int number = LayerNumber(p->name, prefix);
    const size_t at = number < 0 ? layers : static_cast<size_t>(number - shape_.first_layer);
    CHECK_LE(at, layers);
    parameters_[at].push_back(p);
  }
}

Learner::Learner(Model<float>& model, const LearnerOptions& options, Collectives* all,
                 Collectives* expert_copies)
    : Learner(model, options,
              {.world = all,
               .stage = all,
               .gradients = {.stage = all, .copies = all, .expert_copies = expert_copies}}) {}

Learner::ActivationMemory Learner::Activations(int micro_batches, int64_t rows) const {
  schedule::StepShape shape = shape_;
  shape.micro_batches = micro_batches;
  const int slots = schedule::MicroBatchSlots(shape);
  const ActivationCounts counts = model_.CountActivations(rows);
  // A pair of an overlapped schedule computes two layers at the same time.
  const int spares = shape.order == schedule::Order::kOverlapped ? std::min(slots, 2) : 1;
  const auto bytes = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  return {.slots = slots,
          .bytes = bytes(slots * counts.kept + spares * counts.dropped()),
          .unrecomputed = bytes(slots * (counts.kept + counts.undropped))};
}

void Learner::PlanStep(int micro_batches) {
  if (!list_.empty() && shape_.micro_batches == micro_batches) return;
  shape_.micro_batches = micro_batches;
  list_ = schedule::Plan(shape_);
  CHECK_EQ(schedule::FindScheduleError(shape_, list_), "");
  passes_.resize(std::max(passes_.size(), static_cast<size_t>(schedule::MicroBatchSlots(shape_))));
}

Losses Learner::Learn(std::span<const Batch> batches, const StepSize& step) {
  PlanStep(static_cast<int>(batches.size()));
  Losses losses;
  try {
    for (const Operation& operation : list_) Execute(operation, batches, step, &losses);
  } catch (const std::exception& error) {
    if (ranks_.early_sums != nullptr) ranks_.early_sums->Abort(error.what());
    throw;
  }
  return losses;
}

// The operations of a place of passes_ have a row of the viewer.
profile::Span Learner::SpanOf(const Operation& o) const {
  const bool of_pass = o.micro_batch != Operation::kNone;
  return {options_.profiler,
          {.name = NameOf(o),
           .track = of_pass ? profile::Track::kPass : profile::Track::kSteps,
           .micro_batch =
               of_pass ? o.micro_batch % static_cast<int>(passes_.size()) : profile::Event::kNone,
           .layer =
               o.layer == Operation::kNone ? profile::Event::kNone : shape_.first_layer + o.layer}};
}

void Learner::Execute(const Operation& o, std::span<const Batch> batches, const StepSize& step,
                      Losses* losses) {
  Pass<float>* pass = nullptr;
  if (o.micro_batch != Operation::kNone) {
    pass = &passes_[static_cast<size_t>(o.micro_batch) % passes_.size()];
  }
  const profile::Span span = SpanOf(o);
  switch (o.kind) {
    case Kind::kBegin:
      return model_.Begin(batches[static_cast<size_t>(o.micro_batch)], step, pass);
    case Kind::kReceive:
      return ranks_.link->Receive(pass->depths[0].stream);
    case Kind::kForward:
      return model_.Forward(o.layer, o.phase, pass);
    case Kind::kSend:
      ranks_.link->Send(pass->depths[0].stream);
      *losses += pass->losses;
      return;
    case Kind::kHeads:
      model_.Heads(true, pass);
      *losses += pass->losses;
      return;
    case Kind::kReceiveGradient:
      return ranks_.link->ReceiveGradient(pass->depths[0].stream);
    case Kind::kBackward:
      return model_.Backward(o.layer, o.phase, pass);
    case Kind::kSendGradient:
      return ranks_.link->SendGradient(pass->depths[0].stream);
    case Kind::kWeights:
      return model_.Weights(o.layer, pass);
    case Kind::kSumGradients:
      return SumLayer(o.layer);
    case Kind::kAwaitSums:
      if (ranks_.early_sums != nullptr) ranks_.early_sums->Await();
      return;
    case Kind::kEmbed:  // operations of serving, which FindScheduleError does not accept
    case Kind::kLogits:
    case Kind::kSample:
      CHECK(false);
  }
}

void Learner::SumLayer(int layer) {
  const auto& parameters =
      layer == Operation::kNone ? parameters_.back() : parameters_[static_cast<size_t>(layer)];
  if (ranks_.early_sums != nullptr) {
    ranks_.early_sums->Start(parameters);
  } else {
    train::SumGradients(parameters, ranks_.gradients);
  }
}

std::map<std::string, double> Learner::AfterStep(double rate_part) {
  std::vector<std::vector<float>> loads = model_.loads();
  float replay[] = {static_cast<float>(model_.replay().replayed),
                    static_cast<float>(model_.replay().agreed)};
  model_.ClearLoads();
  Balance balance;
  for (std::vector<float>& layer : loads) {
    if (ranks_.stage != nullptr) ranks_.stage->AllReduceSum(layer.data(), layer.size());
    balance.Add(layer);
  }
  if (ranks_.stage != nullptr && !loads.empty())
    ranks_.stage->AllReduceSum(replay, std::size(replay));
  balance.replayed = replay[0];
  balance.agreed = replay[1];
  if (ranks_.stages > 1) balance = balance.OfAllStages(*ranks_.world, ranks_.stages);
  const double step = options_.bias_step * (options_.bias_step_falls ? rate_part : 1.0);
  if (step > 0.0) model_.MoveBiases(loads, step);
  return balance.Figures();
}

}  // namespace switchyard::train
