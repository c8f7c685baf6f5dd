#include "train/device/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"
#include "model/rope.h"

namespace switchyard::train {
namespace {

constexpr int64_t kHeadRows = 1024;  // rows whose logits are in memory at the same time

}  // namespace

void CheckDeviceModel(const ModelConfig& config, const LossOptions& options) {
  const auto refuse = [&](bool is, std::string_view what) {
    if (is) throw Invalid("{}: {} cannot be trained on GPUs yet", config.architecture, what);
  };
  refuse(options.mtp_layers > 0, "a model with MTP modules (want --mtp-layers 0)");
}

template <typename C>
DeviceModel<C>::DeviceModel(Model<float>& host, TrainOps<C>& ops)
    : host_(host),
      hidden_(host.config().hidden),
      ops_(ops),
      memory_(ops.device()),
      parameters_(host.parameters(), ops, memory_),
      on_{ops_, memory_, parameters_} {
  const ModelConfig& config = host.config();
  CheckDeviceModel(config, host.options());
  const TensorNames names = NamesOf(config);
  const Tensor table = BuildCosSin(config.rope, config.max_position);
  cos_sin_ = DeviceArray<float>(memory_, std::span<const float>(table.span<float>()));
  embedding_ = parameters_.Place(names.embedding);
  int64_t loads = 0;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    const LayerConfig& c = config.layers[static_cast<size_t>(i)];
    const std::string prefix = fmt::format("{}{}.", names.layers, i);
    Layer& layer = layers_.emplace_back();
    layer.input_norm = parameters_.Place(prefix + names.input_norm + ".weight");
    layer.attention = MakeDeviceAttention<C>({.config = config,
                                              .names = names,
                                              .prefix = prefix,
                                              .window = c.window,
                                              .cos_sin = cos_sin_.data(),
                                              .on = on_});
    layer.post_norm = parameters_.Place(prefix + names.post_attention_norm + ".weight");
    if (c.moe) {
      layer.moe = std::make_unique<DeviceMoe<C>>(config, names, prefix, on_);
      layer.loads_at = loads;
      loads += config.moe->router.num_experts;
    } else {
      const std::string mlp = prefix + names.mlp + ".";
      layer.dense = DeviceFeedForward<C>::Make(on_, mlp + "gate_proj", mlp + "up_proj",
                                               mlp + "down_proj", hidden_, config.intermediate);
    }
  }
  final_norm_ = parameters_.Place(names.final_norm);
  head_ = {.weight = config.tie_embeddings ? embedding_ : parameters_.Place(names.head),
           .n = config.vocab_size,
           .k = hidden_};
  parameters_.Allocate();
  parameters_.FromHost(nullptr);
  loads_ = DeviceArray<int32_t>(memory_, loads);
  ops_.Zero(loads_.data(), loads_.bytes());
}

template <typename C>
DeviceModel<C>::~DeviceModel() = default;

template <typename C>
typename DeviceModel<C>::Rows DeviceModel<C>::Upload(const DepthState<float>& depth) {
  const RowLayout& layout = depth.rows;
  std::vector<int32_t> lengths;
  for (size_t i = 0; i + 1 < layout.begins.size(); ++i)
    lengths.push_back(layout.begins[i + 1] - layout.begins[i]);
  const int64_t longest = std::ranges::max(lengths);
  lengths.push_back(static_cast<int32_t>(layout.rows()));
  const auto upload = [&](const std::vector<int32_t>& values) {
    return DeviceArray<int32_t>(memory_, std::span<const int32_t>(values));
  };
  Rows rows{.tokens = upload(depth.tokens),
            .begins = upload(layout.begins),
            .positions = upload(layout.positions),
            .lengths = upload(lengths),
            .view = {}};
  rows.view = {.begins = rows.begins.data(),
               .positions = rows.positions.data(),
               .lengths = rows.lengths.data(),
               .m = layout.rows(),
               .sequences = layout.sequences(),
               .longest = longest};
  return rows;
}

template <typename C>
DeviceArray<C> DeviceModel<C>::Normed(const DeviceArray<float>& x, const Slab& gain) {
  auto y = on_.template Array<C>(x.size());
  ops_.RmsNorm(Norm(x.size() / hidden_), x.data(), parameters_.value(gain), y.data());
  return y;
}

template <typename C>
void DeviceModel<C>::NormBackward(const DeviceArray<float>& x, const Slab& gain, const float* dy,
                                  bool accumulate, DeviceArray<float>* d) {
  ops_.RmsNormGradient(Norm(x.size() / hidden_), x.data(), parameters_.value(gain), dy, d->data(),
                       accumulate, parameters_.gradient(gain));
}

template <typename C>
DeviceArray<C> DeviceModel<C>::Rounded(const DeviceArray<float>& x) {
  auto y = on_.template Array<C>(x.size());
  ops_.Round(x.data(), y.data(), x.size());
  return y;
}

template <typename C>
DeviceArray<float> DeviceModel<C>::Forward(Layer& layer, const Rows& rows, DeviceArray<float> x,
                                           double step_tokens, State* s) {
  const int64_t m = rows.view.m;
  s->x = std::move(x);
  s->normed = Normed(s->x, *layer.input_norm);
  s->after = on_.template Array<float>(m * hidden_);
  ops_.Copy(s->after.data(), s->x.data(), s->x.bytes());
  layer.attention->Forward(rows.view, s->normed.data(), &s->attention, s->after.data());
  s->after_normed = Normed(s->after, *layer.post_norm);
  auto out = on_.template Array<float>(m * hidden_);
  ops_.Copy(out.data(), s->after.data(), s->after.bytes());
  if (layer.dense) {
    layer.dense->ForwardSum(on_, m, s->after_normed.data(), &s->gate_up, out.data());
    return out;
  }
  DeviceArray<float> balance =
      layer.moe->Forward(rows.view, s->after_normed.data(), host_.options().balance, step_tokens,
                         &s->moe, out.data(), loads_.data() + layer.loads_at);
  if (!balance.empty())
    pending_.push_back({.losses = std::move(balance), .scale = 1, .balance = true});
  return out;
}

template <typename C>
void DeviceModel<C>::Backward(Layer& layer, const Rows& rows, State& s, DeviceArray<float>* d) {
  const int64_t m = rows.view.m;
  auto dnormed = on_.template Array<float>(m * hidden_);
  {
    const DeviceArray<C> dout = Rounded(*d);
    if (layer.dense) {
      layer.dense->Backward(on_, m, s.after_normed.data(), &s.gate_up, dout.data(), dnormed.data(),
                            false);
    } else {
      layer.moe->Backward(rows.view, s.after_normed.data(), s.moe, d->data(), dout.data(),
                          dnormed.data());
    }
  }
  NormBackward(s.after, *layer.post_norm, dnormed.data(), true, d);
  const DeviceArray<C> dout = Rounded(*d);
  layer.attention->Backward(rows.view, s.normed.data(), s.attention, dout.data(), dnormed.data());
  NormBackward(s.x, *layer.input_norm, dnormed.data(), true, d);
}

template <typename C>
DeviceArray<float> DeviceModel<C>::Heads(const DeviceArray<float>& x,
                                         const std::vector<int32_t>& targets,
                                         const StepSize& step) {
  const std::ptrdiff_t m = std::ssize(targets);
  // Rows without a target are omitted from the products.
  std::vector<int32_t> rows, wanted, place(targets.size(), -1);
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == Batch::kIgnored) continue;
    place[t] = static_cast<int32_t>(rows.size());
    rows.push_back(static_cast<int32_t>(t));
    wanted.push_back(targets[t]);
  }
  const std::ptrdiff_t count = std::ssize(rows);
  const double scale = 1.0 / step.targets;
  const DeviceArray<C> final = Normed(x, *final_norm_);
  auto dfinal = on_.template Array<float>(m * hidden_);
  if (count == 0) {
    ops_.Zero(dfinal.data(), dfinal.bytes());
  } else {
    const DeviceArray<int32_t> row_ids(memory_, std::span<const int32_t>(rows)),
        target_ids(memory_, std::span<const int32_t>(wanted));
    DeviceArray<int32_t> places(memory_, std::span<const int32_t>(place));
    auto in = on_.template Array<C>(count * hidden_);
    ops_.SelectRows(final.data(), row_ids.data(), count, hidden_, in.data());
    auto din = on_.template Array<float>(count * hidden_), losses = on_.template Array<float>(count);
    const int64_t most = std::min<int64_t>(kHeadRows, count);
    auto logits = on_.template Array<float>(most * head_.n);
    auto dlogits = on_.template Array<C>(most * head_.n);
    for (int64_t begin = 0; begin < count; begin += kHeadRows) {
      const int64_t c = std::min<int64_t>(kHeadRows, count - begin);
      const C* chunk = in.data() + begin * hidden_;
      head_.ForwardSum(on_, c, chunk, logits.data(), false);
      ops_.CrossEntropy(logits.data(), target_ids.data() + begin, c, head_.n,
                        static_cast<float>(scale), dlogits.data(), losses.data() + begin);
      head_.BackwardSum(on_, c, chunk, dlogits.data(), din.data() + begin * hidden_, false);
    }
    const DeviceSlots slots = {
        .m = m, .k = 1, .slots = nullptr, .place = places.data(), .offsets = nullptr};
    ops_.ScatterRows(slots, din.data(), hidden_, false, dfinal.data());
    pending_.push_back({.losses = std::move(losses), .scale = scale, .balance = false});
  }
  auto d = on_.template Array<float>(m * hidden_);
  NormBackward(x, *final_norm_, dfinal.data(), false, &d);
  return d;
}

template <typename C>
void DeviceModel<C>::Learn(const Batch& batch, const StepSize& step) {
  host_.Begin(batch, step, &pass_);
  if (!batch.experts.empty())
    throw Error(ErrorKind::kInvalid, "documents that give experts cannot be trained on GPUs yet",
                "train without them: --routing-replay off");
  if (batch.size() == 0) return;
  const DepthState<float>& depth = pass_.depths.front();
  const Rows rows = Upload(depth);
  DeviceArray<float> stream(memory_, rows.view.m * hidden_);
  ops_.Embed(rows.tokens.data(), rows.view.m, parameters_.value(*embedding_), hidden_,
             stream.data());
  std::vector<State> states(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i)
    stream = Forward(layers_[i], rows, std::move(stream), step.tokens, &states[i]);
  DeviceArray<float> d = Heads(stream, depth.targets, step);
  for (size_t i = layers_.size(); i-- > 0;) {
    Backward(layers_[i], rows, states[i], &d);
    states.pop_back();  // releases the activations
  }
  ops_.EmbedGradient(depth.tokens, d.data(), hidden_, parameters_.gradient(*embedding_));
}

template <typename C>
Losses DeviceModel<C>::TakeLosses() {
  Losses sums;
  for (const Pending& pending : pending_) {
    std::vector<float> losses(static_cast<size_t>(pending.losses.size()));
    memory_.device().CopyOut(losses.data(), pending.losses.data(), losses.size() * sizeof(float));
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0) * pending.scale;
    (pending.balance ? sums.balance : sums.main) += sum;
  }
  pending_.clear();
  return sums;
}

template <typename C>
std::vector<std::vector<float>> DeviceModel<C>::TakeLoads() {
  std::vector<int32_t> counts(static_cast<size_t>(loads_.size()));
  std::vector<std::vector<float>> loads;
  if (counts.empty()) return loads;
  memory_.device().CopyOut(counts.data(), loads_.data(), counts.size() * sizeof(int32_t));
  ops_.Zero(loads_.data(), loads_.bytes());
  const auto experts = static_cast<size_t>(host_.config().moe->router.num_experts);
  for (size_t at = 0; at < counts.size(); at += experts) {
    const auto layer = std::span(counts).subspan(at, experts);
    loads.emplace_back(layer.begin(), layer.end());
  }
  return loads;
}

template <typename C>
void DeviceModel<C>::UploadBiases() {
  for (const Layer& layer : layers_)
    if (layer.moe != nullptr && layer.moe->bias() != nullptr)
      parameters_.UploadValue(*layer.moe->bias());
}

template class DeviceModel<float>;
template class DeviceModel<BF16>;

}  // namespace switchyard::train
