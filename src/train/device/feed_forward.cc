#include "train/device/feed_forward.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/dtype.h"
#include "train/device/row_exchange.h"

namespace switchyard::train {

template <typename C>
DeviceFeedForward<C> DeviceFeedForward<C>::Make(const DeviceContext<C>& on, const std::string& gate,
                                                const std::string& up, const std::string& down,
                                                int64_t hidden, int64_t width) {
  const std::string names[] = {gate + ".weight", up + ".weight"};
  const DeviceLinear<C> gate_up = {
      .weight = on.parameters.Place(names, on.Fp8Groups(1)), .n = 2 * width, .k = hidden};
  return {
      gate_up,
      {.weight = on.parameters.Place(down + ".weight", on.Fp8Groups(1)), .n = hidden, .k = width}};
}

template <typename C>
DeviceArray<C> DeviceFeedForward<C>::Middle(const DeviceContext<C>& on, int64_t rows, const C* x,
                                            DeviceArray<C>* gate_up, const int32_t* offsets) const {
  *gate_up = gate_up_.Forward(on, rows, x, offsets);
  auto middle = on.template Array<C>(rows * down_.k);
  on.ops.SwiGlu(ShapeOf(rows, offsets), gate_up->data(), middle.data());
  return middle;
}

template <typename C>
DeviceArray<C> DeviceFeedForward<C>::Forward(const DeviceContext<C>& on, int64_t rows, const C* x,
                                             DeviceArray<C>* gate_up,
                                             const int32_t* offsets) const {
  const DeviceArray<C> middle = Middle(on, rows, x, gate_up, offsets);
  return down_.Forward(on, rows, middle.data(), offsets);
}

template <typename C>
void DeviceFeedForward<C>::ForwardSum(const DeviceContext<C>& on, int64_t rows, const C* x,
                                      DeviceArray<C>* gate_up, float* y) const {
  const DeviceArray<C> middle = Middle(on, rows, x, gate_up);
  down_.ForwardSum(on, rows, middle.data(), y, true);
}

template <typename C>
DeviceArray<C> DeviceFeedForward<C>::MiddleAgain(const DeviceContext<C>& on, int64_t rows,
                                                 const DeviceArray<C>& gate_up,
                                                 const int32_t* offsets) const {
  auto middle = on.template Array<C>(rows * down_.k);
  on.ops.SwiGlu(ShapeOf(rows, offsets), gate_up.data(), middle.data());
  return middle;
}

template <typename C>
void DeviceFeedForward<C>::BackwardInputs(const DeviceContext<C>& on, int64_t rows,
                                          DeviceArray<C>* gate_up, const C* dout, float* dx,
                                          bool accumulate, const int32_t* offsets) const {
  const DeviceArray<C> dmiddle = down_.InputGradient(on, rows, dout, offsets);
  on.ops.SwiGluGradient(ShapeOf(rows, offsets), dmiddle.data(), gate_up->data());
  gate_up_.InputGradientSum(on, rows, gate_up->data(), dx, accumulate, offsets);
}

template <typename C>
void DeviceFeedForward<C>::BackwardWeights(const DeviceContext<C>& on, int64_t rows, const C* x,
                                           const C* middle, const C* dgate_up, const C* dout,
                                           const int32_t* offsets) const {
  down_.WeightGradient(on, rows, middle, dout, offsets);
  gate_up_.WeightGradient(on, rows, x, dgate_up, offsets);
}

template <typename C>
void DeviceFeedForward<C>::Backward(const DeviceContext<C>& on, int64_t rows, const C* x,
                                    DeviceArray<C>* gate_up, const C* dout, float* dx,
                                    bool accumulate) const {
  const DeviceArray<C> middle = MiddleAgain(on, rows, *gate_up);
  BackwardInputs(on, rows, gate_up, dout, dx, accumulate);
  BackwardWeights(on, rows, x, middle.data(), gate_up->data(), dout);
}

namespace {

// The experts of this rank among those of the layer.
Range ExpertsOf(const DeviceGroups& groups, int64_t experts) {
  if (groups.experts == nullptr) return {0, experts};
  return EvenPart(experts, groups.experts->size(), groups.experts->rank());
}

RouterConfig WithExperts(RouterConfig config, int64_t experts) {
  config.num_experts = static_cast<int>(experts);
  return config;
}

}  // namespace

template <typename C>
DeviceMoe<C>::DeviceMoe(const ModelConfig& config, const TensorNames& names, int layer,
                        const std::string& prefix, const DeviceContext<C>& on)
    : on_(on),
      layer_(layer),
      config_(config.moe->router),
      mine_(ExpertsOf(on.ranks.groups(), config_.num_experts)),
      local_(WithExperts(config_, mine_.size())),
      hidden_(config.hidden) {
  const std::string block = prefix + names.moe + ".";
  router_ = on.parameters.Place(block + names.router + ".weight");
  if (names.correction_bias) bias_ = on.parameters.Place(CorrectionBiasName(names, block));
  const int64_t width = config.moe->intermediate;
  std::vector<std::string> gate_up, down;
  for (int64_t e = mine_.begin; e < mine_.end; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", block, e);
    for (const std::string& name : {names.expert_gate, names.expert_up})
      gate_up.push_back(expert + name + ".weight");
    down.push_back(expert + names.expert_down + ".weight");
  }
  experts_.emplace(
      DeviceLinear<C>{.weight = on.parameters.Place(gate_up, on.Fp8Groups(mine_.size())),
                      .n = 2 * width,
                      .k = hidden_,
                      .groups = mine_.size()},
      DeviceLinear<C>{.weight = on.parameters.Place(down, on.Fp8Groups(mine_.size())),
                      .n = hidden_,
                      .k = width,
                      .groups = mine_.size()});
  if (const int64_t shared = config.moe->shared_intermediate; shared > 0) {
    const std::string at = block + names.shared + ".";
    shared_ = DeviceFeedForward<C>::Make(on, at + "gate_proj", at + "up_proj", at + "down_proj",
                                         hidden_, shared);
  }
}

template <typename C>
DeviceRouting DeviceMoe<C>::RoutingOf(int64_t m, DeviceMoeState<C>& s) const {
  return {.m = m,
          .logits = s.logits.data(),
          .bias = bias_ == nullptr ? nullptr : on_.parameters.value(*bias_),
          .scores = s.scores.data(),
          .ids = s.ids.data(),
          .weights = s.weights.data()};
}

template <typename C>
DeviceSlots DeviceMoe<C>::SlotsOf(int64_t n, DeviceMoeState<C>& s) const {
  return {.m = n, .k = config_.top_k, .place = s.place.data(), .offsets = s.offsets.data()};
}

template <typename C>
void DeviceMoe<C>::Route(int64_t m, const Input& in, DeviceMoeState<C>* s, int32_t* counts) {
  const int64_t experts = config_.num_experts, k = config_.top_k;
  for (DeviceArray<float>* array : {&s->logits, &s->scores})
    *array = on_.template Array<float>(m * experts);
  s->weights = on_.template Array<float>(m * k);
  s->ids = on_.template Array<int32_t>(m * k);
  if (m == 0) return;
  const profile::Span span = on_.ranks.Operation("route", layer_, m);
  on_.ops.RouterProject(m, experts, hidden_, in.x, on_.parameters.value(*router_),
                        s->logits.data());
  const DeviceRouting routing = RoutingOf(m, *s);
  on_.ops.SelectExperts(config_, routing);
  if (in.given != nullptr) on_.ops.GiveExperts(config_, routing, in.given, counts);
  on_.ops.RouteWeights(config_, routing);
}

template <typename C>
DeviceArray<float> DeviceMoe<C>::AddBalance(const DeviceRows& rows, const Input& in,
                                            DeviceMoeState<C>* s) {
  const BalanceLosses& losses = in.losses;
  if (!losses.any()) return {};
  const int64_t m = rows.m, experts = config_.num_experts;
  const DeviceRouting routing = RoutingOf(m, *s);
  DeviceArray<float> counts;
  if (losses.batch != 0.0) {
    counts = on_.template Array<float>(experts + 1);
    on_.ops.CountTokens(config_, routing, counts.data());
    if (Collectives* const all = on_.ranks.groups().all; all != nullptr) {
      on_.ranks.Fork();
      {
        const profile::Span message = on_.ranks.Message("sum counts", counts.bytes(), layer_);
        all->AllReduceSum(counts.data(), static_cast<size_t>(counts.size()));
      }
      on_.ranks.Join();
    }
  }
  if (m == 0) return {};
  auto of_tokens = on_.template Array<float>(m);
  s->batch_factors = on_.template Array<float>(losses.batch != 0.0 ? experts : 0);
  s->sequence_factors =
      on_.template Array<float>(losses.sequence != 0.0 ? rows.sequences * experts : 0);
  s->balance = {.weights = losses,
                .step_tokens = in.step_tokens,
                .counts = counts.data(),
                .batch = s->batch_factors.data(),
                .sequence = s->sequence_factors.data()};
  on_.ops.Balance(config_, rows, routing, s->balance, of_tokens.data());
  s->balance.counts = nullptr;  // released
  return of_tokens;
}

template <typename C>
DeviceArray<float> DeviceMoe<C>::Forward(const DeviceRows& rows, const Input& in,
                                         DeviceMoeState<C>* s, float* y, int32_t* loads,
                                         int32_t* counts, DeviceRowSums* sums) {
  const RowExchange<C> exchange(on_, rows, layer_);
  const int64_t m = rows.m, n = exchange.rows(), k = config_.top_k;
  DispatchedRows<C> dispatched(on_, exchange, "gather x", in.x, m, hidden_);  // during routing
  Route(m, in, s, counts);
  DeviceArray<float> losses = AddBalance(rows, in, s);
  const bool own = !exchange.needed();
  DeviceArray<int32_t> all_ids;
  if (!own) {
    all_ids = exchange.Gather("gather experts", s->ids.data(), k);
    s->all_weights = exchange.Gather("gather weights", s->weights.data(), k);
  }
  const auto add_shared = [&] {
    if (shared_ && m > 0) shared_->ForwardSum(on_, m, in.x, &s->shared_gate_up, y);
  };
  if (m > 0) on_.ops.Copy(y, in.base, m * hidden_ * static_cast<int64_t>(sizeof(float)));
  if (!own) {
    add_shared();  // beside the gathers
    on_.ranks.Join();
    on_.ops.SelectLocal(mine_, all_ids.data(), all_ids.size());
  }
  if (n == 0) return losses;

  s->all_x = dispatched.Take();
  const C* const all_x = s->all_x.empty() ? in.x : s->all_x.data();
  s->place = on_.template Array<int32_t>(n * k);
  s->offsets = on_.template Array<int32_t>(mine_.size() + 1);
  const DeviceSlots slots = SlotsOf(n, *s);
  on_.ops.SortSlots(local_, own ? s->ids.data() : all_ids.data(), slots, loads + mine_.begin);
  {
    const profile::Span span = on_.ranks.Operation("experts", layer_, n);
    auto gathered = on_.template Array<C>(n * k * hidden_);
    on_.ops.GatherRows(local_, slots, all_x, hidden_, gathered.data());
    s->results = experts_->Forward(on_, n * k, gathered.data(), &s->gate_up, s->offsets.data());
  }
  const profile::Span span = on_.ranks.Operation("combine", layer_, n);
  if (own) {
    on_.ops.Combine(local_, slots, s->results.data(), s->weights.data(), hidden_, true, y);
    add_shared();
    return losses;
  }
  const auto combine = [&](const Range& tokens, float* out) {
    const DeviceSlots some = {
        .m = tokens.size(), .k = k, .place = slots.place + tokens.begin * k, .offsets = nullptr};
    on_.ops.Combine(local_, some, s->results.data(), s->all_weights.data() + tokens.begin * k,
                    hidden_, false, out);
  };
  exchange.SumInParts("sum outputs", hidden_, combine, sums);
  return losses;
}

template <typename C>
void DeviceMoe<C>::Backward(const DeviceRows& rows, const C* x, DeviceMoeState<C>& s, const C* dy,
                            float* dx) {
  const RowExchange<C> exchange(on_, rows, layer_);
  const int64_t m = rows.m, n = exchange.rows(), experts = config_.num_experts, k = config_.top_k;
  const bool own = !exchange.needed(), adds = shared_.has_value();
  DispatchedRows<C> dispatched(on_, exchange, "gather dy", dy, m, hidden_);  // during what follows
  const DeviceSlots slots = SlotsOf(n, s);
  auto gathered = on_.template Array<C>(n * k * hidden_);  // again, not saved
  DeviceArray<C> middle;
  if (n > 0) {
    on_.ops.GatherRows(local_, slots, s.all_x.empty() ? x : s.all_x.data(), hidden_,
                       gathered.data());
    middle = experts_->MiddleAgain(on_, n * k, s.gate_up, s.offsets.data());
  }
  if (adds && m > 0) shared_->Backward(on_, m, x, &s.shared_gate_up, dy, dx, false);
  if (!own) on_.ranks.Join();
  if (n == 0) return;

  const DeviceArray<C> all_dy = dispatched.Take();
  auto dweights = on_.template Array<float>(m * k);
  auto all_dweights = on_.template Array<float>(own ? 0 : n * k);
  on_.ops.CombineGradient(local_, slots, all_dy.empty() ? dy : all_dy.data(), s.results.data(),
                          own ? s.weights.data() : s.all_weights.data(), hidden_, s.results.data(),
                          own ? dweights.data() : all_dweights.data());
  auto drows = on_.template Array<float>(n * k * hidden_);
  experts_->BackwardInputs(on_, n * k, &s.gate_up, s.results.data(), drows.data(), false,
                           s.offsets.data());
  auto parts = on_.template Array<float>(own ? 0 : n * hidden_);
  auto sum = on_.template Array<float>(own || !adds ? 0 : m * hidden_);
  on_.ops.ScatterRows(slots, drows.data(), hidden_, own && adds, own ? dx : parts.data());
  if (!own) {
    // Beside gradients of weights.
    exchange.Sum("sum dx", parts.data(), hidden_, adds ? sum.data() : dx);
    exchange.Sum("sum dweights", all_dweights.data(), k, dweights.data());
  }
  {
    const profile::Span span = on_.ranks.Operation("weight gradients", layer_, n);
    experts_->BackwardWeights(on_, n * k, gathered.data(), middle.data(), s.gate_up.data(),
                              s.results.data(), s.offsets.data());
  }
  if (!own) on_.ranks.Join();
  if (m == 0) return;
  if (!own && adds) on_.ops.Add(sum.data(), dx, sum.size());
  const DeviceRouting routing = RoutingOf(m, s);
  auto dlogits = on_.template Array<float>(m * experts);
  on_.ops.RouteGradient(config_, rows, routing, s.balance.weights.any() ? &s.balance : nullptr,
                        dweights.data(), dlogits.data());
  on_.ops.RouterProductGradients(m, experts, hidden_, dlogits.data(), x,
                                 on_.parameters.value(*router_), dx,
                                 on_.parameters.gradient(*router_));
}

template class DeviceFeedForward<float>;
template class DeviceFeedForward<BF16>;
template class DeviceMoe<float>;
template class DeviceMoe<BF16>;

}  // namespace switchyard::train
