#include "train/device/feed_forward.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/dtype.h"

namespace switchyard::train {

template <typename C>
DeviceFeedForward<C> DeviceFeedForward<C>::Make(const DeviceContext<C>& on, const std::string& gate,
                                                const std::string& up, const std::string& down,
                                                int64_t hidden, int64_t width) {
  const std::string names[] = {gate + ".weight", up + ".weight"};
  const DeviceLinear<C> gate_up = {
      .weight = on.parameters.Place(names), .n = 2 * width, .k = hidden};
  return {gate_up, {.weight = on.parameters.Place(down + ".weight"), .n = hidden, .k = width}};
}

template <typename C>
DeviceArray<C> DeviceFeedForward<C>::Middle(const DeviceContext<C>& on, int64_t rows, const C* x,
                                            DeviceArray<C>* gate_up, const int32_t* offsets) const {
  *gate_up = gate_up_.Forward(on, rows, x, offsets);
  auto middle = on.template Array<C>(rows * down_.k);
  on.ops.SwiGlu({.m = rows, .n = down_.k}, gate_up->data(), middle.data());
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
void DeviceFeedForward<C>::Backward(const DeviceContext<C>& on, int64_t rows, const C* x,
                                    DeviceArray<C>* gate_up, const C* dout, float* dx,
                                    bool accumulate, const int32_t* offsets) const {
  const GateUpShape shape = {.m = rows, .n = down_.k};
  auto middle = on.template Array<C>(rows * down_.k);  // computed again, not saved
  on.ops.SwiGlu(shape, gate_up->data(), middle.data());
  const DeviceArray<C> dmiddle = down_.Backward(on, rows, middle.data(), dout, offsets);
  on.ops.SwiGluGradient(shape, dmiddle.data(), gate_up->data());
  gate_up_.BackwardSum(on, rows, x, gate_up->data(), dx, accumulate, offsets);
}

template <typename C>
DeviceMoe<C>::DeviceMoe(const ModelConfig& config, const TensorNames& names,
                        const std::string& prefix, const DeviceContext<C>& on)
    : on_(on), config_(config.moe->router), hidden_(config.hidden) {
  const std::string block = prefix + names.moe + ".";
  router_ = on.parameters.Place(block + names.router + ".weight");
  if (names.correction_bias) bias_ = on.parameters.Place(CorrectionBiasName(names, block));
  const int64_t experts = config_.num_experts, width = config.moe->intermediate;
  std::vector<std::string> gate_up, down;
  for (int64_t e = 0; e < experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", block, e);
    for (const std::string& name : {names.expert_gate, names.expert_up})
      gate_up.push_back(expert + name + ".weight");
    down.push_back(expert + names.expert_down + ".weight");
  }
  experts_.emplace(
      DeviceLinear<C>{
          .weight = on.parameters.Place(gate_up), .n = 2 * width, .k = hidden_, .groups = experts},
      DeviceLinear<C>{
          .weight = on.parameters.Place(down), .n = hidden_, .k = width, .groups = experts});
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
DeviceSlots DeviceMoe<C>::SlotsOf(int64_t m, DeviceMoeState<C>& s) const {
  return {.m = m, .k = config_.top_k, .place = s.place.data(), .offsets = s.offsets.data()};
}

template <typename C>
DeviceArray<float> DeviceMoe<C>::Forward(const DeviceRows& rows, const Input& in,
                                         DeviceMoeState<C>* s, float* y, int32_t* loads,
                                         int32_t* counts) {
  const C* const x = in.x;
  const BalanceLosses& losses = in.losses;
  const int64_t m = rows.m, experts = config_.num_experts, k = config_.top_k;
  for (DeviceArray<float>* array : {&s->logits, &s->scores})
    *array = on_.template Array<float>(m * experts);
  s->weights = on_.template Array<float>(m * k);
  for (DeviceArray<int32_t>* array : {&s->ids, &s->place})
    *array = on_.template Array<int32_t>(m * k);
  s->offsets = on_.template Array<int32_t>(experts + 1);
  on_.ops.RouterProject(m, experts, hidden_, x, on_.parameters.value(*router_), s->logits.data());
  const DeviceRouting routing = RoutingOf(m, *s);
  on_.ops.SelectExperts(config_, routing);
  if (in.given != nullptr) on_.ops.GiveExperts(config_, routing, in.given, counts);
  on_.ops.RouteWeights(config_, routing);
  const DeviceSlots slots = SlotsOf(m, *s);
  on_.ops.SortSlots(config_, routing.ids, slots, loads);
  DeviceArray<float> balance;
  if (losses.any()) {
    balance = on_.template Array<float>(m);
    s->batch_factors = on_.template Array<float>(losses.batch != 0.0 ? experts : 0);
    s->sequence_factors =
        on_.template Array<float>(losses.sequence != 0.0 ? rows.sequences * experts : 0);
    s->balance = {.weights = losses,
                  .step_tokens = in.step_tokens,
                  .batch = s->batch_factors.data(),
                  .sequence = s->sequence_factors.data()};
    on_.ops.Balance(config_, rows, routing, s->balance, balance.data());
  }
  auto gathered = on_.template Array<C>(m * k * hidden_);
  on_.ops.GatherRows(config_, slots, x, hidden_, gathered.data());
  s->results = experts_->Forward(on_, m * k, gathered.data(), &s->gate_up, s->offsets.data());
  on_.ops.Combine(config_, slots, s->results.data(), s->weights.data(), hidden_, y);
  if (shared_) shared_->ForwardSum(on_, m, x, &s->shared_gate_up, y);
  return balance;
}

template <typename C>
void DeviceMoe<C>::Backward(const DeviceRows& rows, const C* x, DeviceMoeState<C>& s,
                            const float* dy, const C* rounded_dy, float* dx) {
  const int64_t m = rows.m, experts = config_.num_experts, k = config_.top_k;
  const DeviceRouting routing = RoutingOf(m, s);
  const DeviceSlots slots = SlotsOf(m, s);
  auto dweights = on_.template Array<float>(m * k);
  on_.ops.CombineGradient(config_, slots, dy, s.results.data(), s.weights.data(), hidden_,
                          s.results.data(), dweights.data());
  auto gathered = on_.template Array<C>(m * k * hidden_);  // again, not saved
  on_.ops.GatherRows(config_, slots, x, hidden_, gathered.data());
  auto drows = on_.template Array<float>(m * k * hidden_);
  experts_->Backward(on_, m * k, gathered.data(), &s.gate_up, s.results.data(), drows.data(), false,
                     s.offsets.data());
  on_.ops.ScatterRows(slots, drows.data(), hidden_, false, dx);
  auto dlogits = on_.template Array<float>(m * experts);
  on_.ops.RouteGradient(config_, rows, routing, s.balance.weights.any() ? &s.balance : nullptr,
                        dweights.data(), dlogits.data());
  on_.ops.RouterProductGradients(m, experts, hidden_, dlogits.data(), x,
                                 on_.parameters.value(*router_), dx,
                                 on_.parameters.gradient(*router_));
  if (shared_) shared_->Backward(on_, m, x, &s.shared_gate_up, rounded_dy, dx, true);
}

template class DeviceFeedForward<float>;
template class DeviceFeedForward<BF16>;
template class DeviceMoe<float>;
template class DeviceMoe<BF16>;

}  // namespace switchyard::train
