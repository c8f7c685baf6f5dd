#include "train/device/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/dtype.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {

template <typename C>
DeviceParameters<C>::DeviceParameters(std::span<Parameter<float>* const> host, TrainOps<C>& ops,
                                      DeviceRanks& ranks, DeviceMemory& memory)
    : ops_(ops), ranks_(ranks), memory_(memory) {
  for (size_t i = 0; i < host.size(); ++i) {
    host_.emplace(host[i]->name, host[i]);
    index_.emplace(host[i], i);
  }
}

template <typename C>
const Slab* DeviceParameters<C>::Place(std::span<const std::string> names) {
  CHECK(values_.empty());
  Slab slab{.offset = count_};
  for (const std::string& name : names) {
    const auto found = host_.find(name);
    CHECK(found != host_.end());
    Parameter<float>* const p = found->second;
    host_.erase(found);
    if (!slab.parts.empty()) CHECK(p->shape.back() == slab.parts.front()->shape.back());
    slab.trained = !p->gradient.empty();
    slab.decay = p->decay;
    slab.expert = p->expert;
    slab.count += std::ssize(p->value);
    slab.parts.push_back(p);
  }
  count_ += Shards::Blocks(slab.count) * Shards::kBlock;
  slabs_.push_back(std::move(slab));
  return &slabs_.back();
}

template <typename C>
void DeviceParameters<C>::Allocate() {
  CHECK(host_.empty());
  for (DeviceArray<float>* array : {&values_, &gradients_, &first_, &second_}) {
    *array = DeviceArray<float>(memory_, count_);
    ops_.Zero(array->data(), array->bytes());  // gaps stay zero
  }
  copies_ = DeviceArray<C>(memory_, count_);
  sums_ = DeviceArray<double>(memory_, Shards::Blocks(count_));
}

template <typename C>
void DeviceParameters<C>::UploadValue(const Slab& slab) {
  float* to = value(slab);
  for (const Parameter<float>* p : slab.parts) {
    memory_.device().CopyIn(to, p->value.data(), p->value.size() * sizeof(float));
    to += p->value.size();
  }
  ops_.Round(value(slab), copies_.data() + slab.offset, slab.count);
}

template <typename C>
void DeviceParameters<C>::FromHost(AdamW* moments) {
  for (const Slab& slab : slabs_) {
    UploadValue(slab);
    if (moments == nullptr || !slab.trained) continue;
    int64_t at = slab.offset;
    for (const Parameter<float>* p : slab.parts) {
      const AdamW::Moments& m = moments->moments()[index_.at(p)];
      CHECK_EQ(m.first.size(), p->value.size());
      memory_.device().CopyIn(first_.data() + at, m.first.data(), m.first.size() * sizeof(float));
      memory_.device().CopyIn(second_.data() + at, m.second.data(),
                              m.second.size() * sizeof(float));
      at += std::ssize(p->value);
    }
  }
}

template <typename C>
void DeviceParameters<C>::ToHost(AdamW* moments) {
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;  // the host has the value
    int64_t at = slab.offset;
    for (Parameter<float>* p : slab.parts) {
      const size_t bytes = p->value.size() * sizeof(float);
      memory_.device().CopyOut(p->value.data(), values_.data() + at, bytes);
      if (moments != nullptr) {
        AdamW::Moments& m = moments->moments()[index_.at(p)];
        memory_.device().CopyOut(m.first.data(), first_.data() + at, bytes);
        memory_.device().CopyOut(m.second.data(), second_.data() + at, bytes);
      }
      at += std::ssize(p->value);
    }
  }
}

template <typename C>
void DeviceParameters<C>::GradientsToHost() {
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;
    const float* from = gradient(slab);
    for (Parameter<float>* p : slab.parts) {
      memory_.device().CopyOut(p->gradient.data(), from, p->gradient.size() * sizeof(float));
      from += p->gradient.size();
    }
  }
}

// Adjacent slabs of one group are one message. The gaps between them are zero on all ranks.
template <typename C>
void DeviceParameters<C>::SumGradients() {
  const DeviceGroups& groups = ranks_.groups();
  ranks_.Fork();
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const int64_t begin = slab->offset;
    const bool expert = slab->expert;
    while (slab != slabs_.end() && slab->expert == expert) ++slab;
    const int64_t end = slab == slabs_.end() ? count_ : slab->offset;
    Collectives* const group = expert ? groups.expert_copies : groups.all;
    if (group != nullptr)
      group->AllReduceSum(gradients_.data() + begin, static_cast<size_t>(end - begin));
  }
  ranks_.Join();
}

template <typename C>
void DeviceParameters<C>::ClearGradients() {
  ops_.Zero(gradients_.data(), gradients_.bytes());
}

template <typename C>
GradientNorm DeviceParameters<C>::Norm() {
  ops_.SquareSums(gradients_.data(), count_, sums_.data());
  std::vector<double> sums(static_cast<size_t>(sums_.size()));
  memory_.device().CopyOut(sums.data(), sums_.data(), sums.size() * sizeof(double));
  GradientNorm out;
  double replicated = 0, experts = 0;
  for (const Slab& slab : slabs_) {
    double sum = 0;
    const int64_t begin = slab.offset / Shards::kBlock;
    for (int64_t b = begin; b < begin + Shards::Blocks(slab.count); ++b)
      sum += sums[static_cast<size_t>(b)];
    (slab.expert ? experts : replicated) += sum;
    if (std::isfinite(sum)) continue;
    const std::string name = FirstNotFinite(slab);
    if (out.not_finite.empty() || name < out.not_finite) out.not_finite = name;
  }
  AddRanks(replicated, experts, &out);
  return out;
}

template <typename C>
void DeviceParameters<C>::AddRanks(double replicated, double experts, GradientNorm* norm) {
  const DeviceGroups& groups = ranks_.groups();
  if (groups.host != nullptr) {
    const auto ranks = static_cast<size_t>(groups.host->size());
    std::vector<double> all(ranks);
    groups.host->AllGatherV(&experts, all.data(), std::vector<size_t>(ranks, sizeof experts));
    // The first ranks hold all experts, and the others copies of them.
    const auto partitions = static_cast<std::ptrdiff_t>(groups.expert_ranks.size());
    experts = std::accumulate(all.begin(), all.begin() + partitions, 0.0);
    for (const std::string& name : GatherStrings(groups.host, norm->not_finite)) {
      if (name.empty()) continue;
      if (norm->not_finite.empty() || name < norm->not_finite) norm->not_finite = name;
    }
  }
  norm->norm = std::sqrt(replicated + experts);
}

// The first of the slab's parameters, in order of names, whose gradient is not finite.
template <typename C>
std::string DeviceParameters<C>::FirstNotFinite(const Slab& slab) {
  std::string first;
  int64_t at = slab.offset;
  for (const Parameter<float>* p : slab.parts) {
    std::vector<float> gradient(p->value.size());
    memory_.device().CopyOut(gradient.data(), gradients_.data() + at,
                             gradient.size() * sizeof(float));
    at += std::ssize(gradient);
    const bool finite = std::ranges::all_of(gradient, [](float x) { return std::isfinite(x); });
    if (!finite && (first.empty() || p->name < first)) first = p->name;
  }
  // The squares of finite numbers do not overflow in double, so some gradient is not finite.
  CHECK(!first.empty());
  return first;
}

template <typename C>
void DeviceParameters<C>::Step(double learning_rate, double gradient_scale, AdamW* moments) {
  const AdamWOptions& options = moments->options();
  moments->set_steps(moments->steps() + 1);
  const auto t = static_cast<double>(moments->steps());
  AdamWUpdate update{.gradient_scale = static_cast<float>(gradient_scale),
                     .beta1 = static_cast<float>(options.beta1),
                     .one_minus_beta1 = static_cast<float>(1 - options.beta1),
                     .beta2 = static_cast<float>(options.beta2),
                     .one_minus_beta2 = static_cast<float>(1 - options.beta2),
                     .step = static_cast<float>(learning_rate / (1 - std::pow(options.beta1, t))),
                     .unbias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t))),
                     .epsilon = static_cast<float>(options.epsilon)};
  const auto keep = static_cast<float>(1 - learning_rate * options.weight_decay);
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;
    update.keep = slab.decay ? keep : 1.0f;
    ops_.AdamW(update, slab.count, value(slab), gradient(slab), first_.data() + slab.offset,
               second_.data() + slab.offset, copies_.data() + slab.offset);
  }
}

template class DeviceParameters<float>;
template class DeviceParameters<BF16>;

}  // namespace switchyard::train
