#include "train/device/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "model/rope.h"
#include "train/device/checks.h"

namespace switchyard::train {
namespace {

constexpr int64_t kHeadRows = 1024;  // rows whose logits are in memory at the same time

}  // namespace

template <typename C>
DeviceModel<C>::DeviceModel(Model<float>& host, TrainOps<C>& ops, DeviceRanks& ranks,
                            const DeviceOptions& options)
    : host_(host),
      hidden_(host.config().hidden),
      ops_(ops),
      ranks_(ranks),
      memory_(ops.device()),
      parameters_(host.parameters(), ops, ranks, memory_),
      on_{ops_, ranks_, memory_, parameters_, options} {
  const ModelConfig& config = host.config();
  CheckDeviceModel(config, host.options());
  const TensorNames names = NamesOf(config);
  const Tensor table = BuildCosSin(config.rope, config.max_position);
  cos_sin_ = DeviceArray<float>(memory_, std::span<const float>(table.span<float>()));
  embedding_ = parameters_.Place(names.embedding);
  int64_t loads = 0;
  for (int64_t i = 0; i < config.num_layers(); ++i) AddLayer(i, names, &loads);
  final_norms_.push_back(parameters_.Place(names.final_norm));
  const int64_t before_head = parameters_.slabs();
  head_ = {.weight = config.tie_embeddings ? embedding_ : parameters_.Place(names.head),
           .n = config.vocab_size,
           .k = hidden_};
  head_slabs_ = {before_head, parameters_.slabs()};
  for (int64_t d = 0; d < host.options().mtp_layers; ++d) {
    const int64_t index = config.num_layers() + d;
    const std::string prefix = fmt::format("{}{}.", names.layers, index);
    mtp_.push_back({.embedding_norm = parameters_.Place(prefix + "enorm.weight"),
                    .hidden_norm = parameters_.Place(prefix + "hnorm.weight"),
                    .projection = {.weight = parameters_.Place(prefix + "eh_proj.weight"),
                                   .n = hidden_,
                                   .k = 2 * hidden_}});
    AddLayer(index, names, &loads);
    final_norms_.push_back(parameters_.Place(prefix + "shared_head.norm.weight"));
  }
  parameters_.Allocate();
  parameters_.FromHost(nullptr);
  loads_ = DeviceArray<int32_t>(memory_, loads);
  ops_.Zero(loads_.data(), loads_.bytes());
  replay_ = DeviceArray<int32_t>(memory_, 2);
  ops_.Zero(replay_.data(), replay_.bytes());
}

// As Model::AddLayer.
template <typename C>
void DeviceModel<C>::AddLayer(int64_t index, const TensorNames& names, int64_t* loads) {
  const ModelConfig& config = host_.config();
  const bool mtp = index >= config.num_layers();
  const LayerConfig* const own = mtp ? nullptr : &config.layers[static_cast<size_t>(index)];
  const std::string prefix = fmt::format("{}{}.", names.layers, index);
  Layer& layer = layers_.emplace_back();
  layer.index = static_cast<int>(index);
  layer.slabs.begin = parameters_.slabs();
  layer.input_norm = parameters_.Place(prefix + names.input_norm + ".weight");
  layer.attention = MakeDeviceAttention<C>({.config = config,
                                            .names = names,
                                            .prefix = prefix,
                                            .window = mtp ? 0 : own->window,
                                            .cos_sin = cos_sin_.data(),
                                            .on = on_});
  layer.post_norm = parameters_.Place(prefix + names.post_attention_norm + ".weight");
  if (mtp ? config.has_moe() : own->moe) {
    layer.moe = std::make_unique<DeviceMoe<C>>(config, names, layer.index, prefix, on_);
    layer.loads_at = *loads;
    *loads += config.moe->router.num_experts;
  } else {
    const std::string mlp = prefix + names.mlp + ".";
    layer.dense = DeviceFeedForward<C>::Make(on_, mlp + "gate_proj", mlp + "up_proj",
                                             mlp + "down_proj", hidden_, config.intermediate);
  }
  layer.slabs.end = parameters_.slabs();
}

template <typename C>
DeviceModel<C>::~DeviceModel() = default;

template <typename C>
std::vector<std::vector<int64_t>> DeviceModel<C>::RowsOfRanks(
    std::span<const DepthState<float>> depths) {
  std::vector<int64_t> mine;
  for (const DepthState<float>& depth : depths) mine.push_back(depth.rows.rows());
  Collectives* const host = ranks_.groups().host;
  const size_t ranks = host == nullptr ? 1 : static_cast<size_t>(host->size());
  std::vector<int64_t> all(ranks * mine.size());
  if (host == nullptr) {
    all = mine;
  } else {
    host->AllGatherV(mine.data(), all.data(),
                     std::vector<size_t>(ranks, mine.size() * sizeof(int64_t)));
  }
  std::vector<std::vector<int64_t>> rows;
  for (size_t d = 0; d < mine.size(); ++d) {
    std::vector<int64_t> of_depth;
    for (size_t r = 0; r < ranks; ++r) of_depth.push_back(all[r * mine.size() + d]);
    // A depth has rows only if the depths before it have some.
    if (std::ranges::max(of_depth) == 0) break;
    rows.push_back(std::move(of_depth));
  }
  return rows;
}

template <typename C>
typename DeviceModel<C>::Rows DeviceModel<C>::Upload(const DepthState<float>& depth,
                                                     const std::vector<int64_t>& of_ranks) {
  const RowLayout& layout = depth.rows;
  Rows rows;
  if (ranks_.groups().experts != nullptr)
    for (const int rank : ranks_.groups().expert_ranks)
      rows.of_ranks.push_back(of_ranks[static_cast<size_t>(rank)]);
  rows.view.of_ranks = rows.of_ranks;
  if (layout.rows() == 0) return rows;
  std::vector<int32_t> lengths;
  for (size_t i = 0; i + 1 < layout.begins.size(); ++i)
    lengths.push_back(layout.begins[i + 1] - layout.begins[i]);
  const int64_t longest = std::ranges::max(lengths);
  const auto upload = [&](const std::vector<int32_t>& values) {
    return DeviceArray<int32_t>(memory_, std::span<const int32_t>(values));
  };
  rows.tokens = upload(depth.tokens);
  rows.begins = upload(layout.begins);
  rows.positions = upload(layout.positions);
  rows.lengths = upload(lengths);
  rows.view = {.begins = rows.begins.data(),
               .positions = rows.positions.data(),
               .lengths = rows.lengths.data(),
               .m = layout.rows(),
               .sequences = layout.sequences(),
               .longest = longest,
               .of_ranks = rows.of_ranks};
  return rows;
}

template <typename C>
DeviceArray<C> DeviceModel<C>::Normed(const DeviceArray<float>& x, const Slab& gain) {
  auto y = on_.template Array<C>(x.size());
  ops_.RmsNorm(Norm(x.size() / hidden_), x.data(), parameters_.value(gain), y.data());
  return y;
}

template <typename C>
template <typename Use>
DeviceArray<C> DeviceModel<C>::NormedParts(Hidden* hidden, const Slab& gain, const Use& use) {
  DeviceArray<float>& x = hidden->x;
  DeviceRowSums& sums = hidden->sums;
  const int64_t m = x.size() / hidden_;
  auto y = on_.template Array<C>(x.size());
  const auto arrived = [&](const Range& rows) {
    if (rows.size() == 0) return;
    const int64_t at = rows.begin * hidden_;
    if (sums.started) ops_.Add(sums.sums.data() + at, x.data() + at, rows.size() * hidden_);
    ops_.RmsNorm(Norm(rows.size()), x.data() + at, parameters_.value(gain), y.data() + at);
    use(rows, y);
  };
  if (!sums.started) {
    arrived({0, m});
    return y;
  }
  ranks_.JoinMarked();
  arrived(RowPart(0, m));
  ranks_.Join();
  arrived(RowPart(1, m));
  sums = {};
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
typename DeviceModel<C>::Hidden DeviceModel<C>::Forward(Layer& layer, const Rows& rows, Hidden x,
                                                        const int32_t* given, double step_tokens,
                                                        State* s) {
  const int64_t m = rows.view.m;
  Hidden out;
  const auto experts = [&] {
    const profile::Span span = ranks_.Operation("moe", layer.index, m);
    DeviceArray<float> balance = layer.moe->Forward(
        rows.view,
        {.x = s->after_normed.data(),
         .base = s->after.data(),
         .given = given,
         .losses = host_.options().balance,
         .step_tokens = step_tokens},
        &s->moe, out.x.data(), loads_.data() + layer.loads_at, replay_.data(), &out.sums);
    if (!balance.empty())
      pending_.push_back({.losses = std::move(balance), .scale = 1, .part = &Losses::balance});
  };
  if (m == 0) {  // other ranks have rows, for the experts of this rank
    if (layer.moe != nullptr) experts();
    if (out.sums.started) ranks_.Join();
    return {};
  }
  {
    const profile::Span span = ranks_.Operation("attention", layer.index, m);
    s->after = on_.template Array<float>(m * hidden_);
    s->normed = NormedParts(&x, *layer.input_norm, [&](const Range& part, DeviceArray<C>& normed) {
      const Range floats = part * hidden_;
      ops_.Copy(s->after.data() + floats.begin, x.x.data() + floats.begin,
                floats.size() * static_cast<int64_t>(sizeof(float)));
      layer.attention->Project(part, m, normed.data(), &s->attention);
    });
    s->x = std::move(x.x);
    layer.attention->Forward(rows.view, &s->attention, s->after.data());
    s->after_normed = Normed(s->after, *layer.post_norm);
    out.x = on_.template Array<float>(m * hidden_);
  }
  if (layer.dense) {
    const profile::Span span = ranks_.Operation("mlp", layer.index, m);
    ops_.Copy(out.x.data(), s->after.data(), s->after.bytes());
    layer.dense->ForwardSum(on_, m, s->after_normed.data(), &s->gate_up, out.x.data());
  } else {
    experts();
  }
  return out;
}

template <typename C>
void DeviceModel<C>::Backward(Layer& layer, const Rows& rows, State& s, DeviceArray<float>* d) {
  const int64_t m = rows.view.m;
  if (m == 0) {
    if (layer.moe != nullptr) layer.moe->Backward(rows.view, nullptr, s.moe, nullptr, nullptr);
    return StartSums();
  }
  auto dnormed = on_.template Array<float>(m * hidden_);
  {
    const profile::Span span =
        ranks_.Operation(layer.dense ? "mlp backward" : "experts backward", layer.index, m);
    const DeviceArray<C> dout = Rounded(*d);
    if (layer.dense) {
      layer.dense->Backward(on_, m, s.after_normed.data(), &s.gate_up, dout.data(), dnormed.data(),
                            false);
    } else {
      layer.moe->Backward(rows.view, s.after_normed.data(), s.moe, dout.data(), dnormed.data());
    }
  }
  StartSums();
  const profile::Span span = ranks_.Operation("attention backward", layer.index, m);
  NormBackward(s.after, *layer.post_norm, dnormed.data(), true, d);
  const DeviceArray<C> dout = Rounded(*d);
  layer.attention->Backward(rows.view, s.normed.data(), s.attention, dout.data(), dnormed.data());
  NormBackward(s.x, *layer.input_norm, dnormed.data(), true, d);
}

template <typename C>
void DeviceModel<C>::StartSums() {
  if (complete_.size() > 0) parameters_.StartSums(complete_);
  complete_ = {};
}

template <typename C>
DeviceArray<float> DeviceModel<C>::Embedded(const Rows& rows) {
  auto x = on_.template Array<float>(rows.view.m * hidden_);
  const profile::Span span = ranks_.Operation("embedding", DeviceRanks::kNone, rows.view.m);
  ops_.Embed(rows.tokens.data(), rows.view.m, parameters_.value(*embedding_), hidden_, x.data());
  return x;
}

// As Model::Join.
template <typename C>
DeviceArray<float> DeviceModel<C>::Join(const MtpModule& module, const std::vector<int32_t>& source,
                                        const Depth& before, Depth* depth) {
  const int64_t m = depth->rows.view.m, all = before.rows.view.m;
  depth->embedded = Embedded(depth->rows);
  auto hidden = on_.template Array<float>(all * hidden_);
  ops_.LoadColumns(all, hidden_, before.final.data(), hidden_, hidden.data());
  const DeviceArray<int32_t> rows(memory_, std::span<const int32_t>(source));
  depth->previous = on_.template Array<float>(m * hidden_);
  ops_.Embed(rows.data(), m, hidden.data(), hidden_, depth->previous.data());
  depth->joined = on_.template Array<C>(2 * m * hidden_);
  const DeviceArray<C> embedded = Normed(depth->embedded, *module.embedding_norm),
                       previous = Normed(depth->previous, *module.hidden_norm);
  ops_.StoreColumns(m, hidden_, embedded.data(), depth->joined.data(), 2 * hidden_);
  ops_.StoreColumns(m, hidden_, previous.data(), depth->joined.data() + hidden_, 2 * hidden_);
  auto x = on_.template Array<float>(m * hidden_);
  module.projection.ForwardSum(on_, m, depth->joined.data(), x.data(), false);
  return x;
}

template <typename C>
void DeviceModel<C>::JoinBackward(const MtpModule& module, const DepthState<float>& host,
                                  const Depth& depth, const DeviceArray<float>& d, Depth* before) {
  const int64_t m = depth.rows.view.m;
  const DeviceArray<C> dout = Rounded(d);
  const DeviceArray<C> djoined =
      module.projection.Backward(on_, m, depth.joined.data(), dout.data());
  auto dnormed = on_.template Array<float>(m * hidden_),
       dx = on_.template Array<float>(m * hidden_);
  ops_.LoadColumns(m, hidden_, djoined.data(), 2 * hidden_, dnormed.data());
  NormBackward(depth.embedded, *module.embedding_norm, dnormed.data(), false, &dx);
  ops_.EmbedGradient(host.tokens, dx.data(), hidden_, parameters_.gradient(*embedding_));
  ops_.LoadColumns(m, hidden_, djoined.data() + hidden_, 2 * hidden_, dnormed.data());
  NormBackward(depth.previous, *module.hidden_norm, dnormed.data(), false, &dx);
  ops_.EmbedGradient(host.source, dx.data(), hidden_, before->dfinal.data());
}

template <typename C>
void DeviceModel<C>::Head(const std::vector<int32_t>& targets, double scale, double Losses::*part,
                          Depth* depth) {
  const std::ptrdiff_t m = std::ssize(targets);
  const profile::Span span = ranks_.Operation("head", DeviceRanks::kNone, m);
  // Rows without a target are omitted from the products.
  std::vector<int32_t> rows, wanted, place(targets.size(), -1);
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == Batch::kIgnored) continue;
    place[t] = static_cast<int32_t>(rows.size());
    rows.push_back(static_cast<int32_t>(t));
    wanted.push_back(targets[t]);
  }
  const std::ptrdiff_t count = std::ssize(rows);
  depth->dfinal = on_.template Array<float>(m * hidden_);
  if (count == 0) return ops_.Zero(depth->dfinal.data(), depth->dfinal.bytes());
  const DeviceArray<int32_t> row_ids(memory_, std::span<const int32_t>(rows)),
      target_ids(memory_, std::span<const int32_t>(wanted));
  DeviceArray<int32_t> places(memory_, std::span<const int32_t>(place));
  auto in = on_.template Array<C>(count * hidden_);
  ops_.SelectRows(depth->final.data(), row_ids.data(), count, hidden_, in.data());
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
  const DeviceSlots slots = {.m = m, .k = 1, .place = places.data(), .offsets = nullptr};
  ops_.ScatterRows(slots, din.data(), hidden_, false, depth->dfinal.data());
  pending_.push_back({.losses = std::move(losses), .scale = scale, .part = part});
}

template <typename C>
void DeviceModel<C>::Learn(const Batch& batch, const StepSize& step, bool last_of_step) {
  const profile::Span span(ranks_.profiler(), {.name = "micro-batch", .rows = batch.size()});
  host_.Begin(batch, step, &pass_);
  const std::vector<std::vector<int64_t>> of_ranks = RowsOfRanks(pass_.depths);
  const size_t count = of_ranks.size();
  const size_t main_layers = layers_.size() - mtp_.size();
  std::vector<Depth> depths(count);
  std::vector<State> states(layers_.size());
  // Layers of a depth: all of the model, or that of a module.
  const auto first = [&](size_t d) { return d == 0 ? 0 : main_layers + d - 1; };
  const auto last = [&](size_t d) { return main_layers + d; };
  for (size_t d = 0; d < count; ++d) {
    const DepthState<float>& host = pass_.depths[d];
    Depth& depth = depths[d];
    depth.rows = Upload(host, of_ranks[d]);
    Hidden x;
    if (!depth.rows.empty())
      x.x = d == 0 ? Embedded(depth.rows) : Join(mtp_[d - 1], host.source, depths[d - 1], &depth);
    for (size_t i = first(d); i < last(d); ++i) {
      const DeviceArray<int32_t> given = GivenExperts(host, i);
      x = Forward(layers_[i], depth.rows, std::move(x), given.data(), step.tokens, &states[i]);
    }
    if (depth.rows.empty()) continue;
    depth.final = NormedParts(&x, *final_norms_[d], [](const Range&, DeviceArray<C>&) {});
    depth.last = std::move(x.x);
  }
  const LossOptions& options = host_.options();
  for (size_t d = 0; d < count && !depths[d].rows.empty(); ++d) {
    double scale = 1.0 / step.targets;
    if (d > 0) scale *= options.mtp_weight / static_cast<double>(options.mtp_layers);
    Head(pass_.depths[d].targets, scale, d == 0 ? &Losses::main : &Losses::mtp, &depths[d]);
  }
  if (last_of_step) complete_ = head_slabs_;
  for (size_t d = count; d-- > 0;) {
    const DepthState<float>& host = pass_.depths[d];
    Depth& depth = depths[d];
    const bool empty = depth.rows.empty();
    auto stream = on_.template Array<float>(depth.last.size());
    if (!empty) NormBackward(depth.last, *final_norms_[d], depth.dfinal.data(), false, &stream);
    for (size_t i = last(d); i-- > first(d);) {
      Backward(layers_[i], depth.rows, states[i], &stream);
      states[i] = {};  // releases the activations
      if (last_of_step) complete_ = layers_[i].slabs;
    }
    if (d == 0) StartSums();
    if (empty) continue;
    const profile::Span span = ranks_.Operation("embedding backward", DeviceRanks::kNone);
    if (d == 0) {
      ops_.EmbedGradient(host.tokens, stream.data(), hidden_, parameters_.gradient(*embedding_));
    } else {
      JoinBackward(mtp_[d - 1], host, depth, stream, &depths[d - 1]);
    }
  }
  complete_ = {};  // SumGradients sums the others
}

template <typename C>
DeviceArray<int32_t> DeviceModel<C>::GivenExperts(const DepthState<float>& host, size_t layer) {
  if (host.experts.empty() || layers_[layer].moe == nullptr) return {};
  const auto k = static_cast<size_t>(host_.config().moe->router.top_k);
  const size_t width = k * static_cast<size_t>(host_.config().num_layers());
  std::vector<int32_t> given;
  for (size_t at = layer * k; at < host.experts.size(); at += width) {
    const auto token = std::span(host.experts).subspan(at, k);
    given.insert(given.end(), token.begin(), token.end());
  }
  return DeviceArray<int32_t>(memory_, std::span<const int32_t>(given));
}

template <typename C>
typename Model<float>::ReplayCounts DeviceModel<C>::TakeReplay() {
  int32_t counts[2] = {};
  memory_.device().CopyOut(counts, replay_.data(), sizeof counts);
  ops_.Zero(replay_.data(), replay_.bytes());
  return {.replayed = static_cast<double>(counts[0]), .agreed = static_cast<double>(counts[1])};
}

template <typename C>
Losses DeviceModel<C>::TakeLosses() {
  Losses sums;
  for (const Pending& pending : pending_) {
    std::vector<float> losses(static_cast<size_t>(pending.losses.size()));
    memory_.device().CopyOut(losses.data(), pending.losses.data(), losses.size() * sizeof(float));
    sums.*pending.part += std::accumulate(losses.begin(), losses.end(), 0.0) * pending.scale;
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
