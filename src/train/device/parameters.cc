#include "train/device/parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/dtype.h"
#include "core/rounding.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {
namespace {

constexpr int64_t kMomentUnit = 64;  // shards begin at multiples, so that kernels can load vectors

}  // namespace

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
const Slab* DeviceParameters<C>::Place(std::span<const std::string> names, int64_t fp8_groups) {
  CHECK(values_.empty());
  Slab slab{.offset = count_, .fp8_groups = fp8_groups};
  for (const std::string& name : names) {
    const auto found = host_.find(name);
    CHECK(found != host_.end());
    Parameter<float>* const p = found->second;
    host_.erase(found);
    if (!slab.parts.empty()) CHECK(p->shape.back() == slab.parts.front().parameter->shape.back());
    if (fp8_groups > 0 && (p->shape[0] % kFp8Block != 0 || p->shape[1] % kFp8Block != 0))
      throw Invalid("{} [{}, {}]: FP8 products need widths that are multiples of {}", p->name,
                    p->shape[0], p->shape[1], kFp8Block);
    slab.trained = p->trained();
    slab.decay = p->decay;
    slab.expert = p->expert;
    slab.sharded = p->shards.partial();
    slab.parts.push_back({.parameter = p, .offset = slab.offset + slab.count, .moments = moments_});
    slab.count += std::ssize(p->value);
    moments_ += p->MyShard().size();
    p->MoveGradientToDevice();
    if (slab.sharded) moments_ = RoundUp(moments_, kMomentUnit);
  }
  moments_ = RoundUp(moments_, kMomentUnit);
  if (fp8_groups > 0) fp8_count_ += slab.count;
  count_ += Shards::Blocks(slab.count) * Shards::kBlock;
  slabs_.push_back(std::move(slab));
  return &slabs_.back();
}

template <typename C>
void DeviceParameters<C>::Allocate() {
  CHECK(host_.empty());
  for (const auto& [array, count] : {std::pair{&values_, count_}, std::pair{&gradients_, count_},
                                     std::pair{&first_, moments_}, std::pair{&second_, moments_}}) {
    *array = DeviceArray<float>(memory_, count);
    ops_.Zero(array->data(), array->bytes());  // gaps stay zero
  }
  copies_ = DeviceArray<C>(memory_, count_);
  constexpr int64_t kBlock = kFp8Block * kFp8Block;
  for (DeviceArray<uint8_t>* array : {&codes_, &transposed_})
    *array = DeviceArray<uint8_t>(memory_, fp8_count_);
  for (DeviceArray<float>* array : {&scales_, &transposed_scales_})
    *array = DeviceArray<float>(memory_, fp8_count_ / kBlock);
  int64_t at = 0;
  for (Slab& slab : slabs_) {
    if (slab.fp8_groups == 0) continue;
    slab.fp8 = {.codes = codes_.data() + at,
                .scales = scales_.data() + at / kBlock,
                .transposed = transposed_.data() + at,
                .transposed_scales = transposed_scales_.data() + at / kBlock};
    at += slab.count;
  }
  summed_.assign(slabs_.size(), false);
  squared_.assign(slabs_.size(), false);
  sums_ = DeviceArray<double>(memory_, Shards::Blocks(count_));
}

template <typename C>
void DeviceParameters<C>::UploadValue(const Slab& slab) {
  for (const auto& [p, offset, moments] : slab.parts)
    memory_.device().CopyIn(values_.data() + offset, p->value.data(),
                            p->value.size() * sizeof(float));
  ops_.Round(value(slab), copies_.data() + slab.offset, slab.count);
  Quantize(slab);
}

template <typename C>
void DeviceParameters<C>::Quantize(const Slab& slab) {
  if (slab.fp8_groups == 0) return;
  const int64_t k = slab.parts.front().parameter->shape[1];
  ops_.QuantizeWeight({.n = slab.count / (slab.fp8_groups * k),
                       .k = k,
                       .groups = slab.fp8_groups,
                       .fp8 = &slab.fp8},
                      copy(slab));
}

template <typename C>
void DeviceParameters<C>::FromHost(AdamW* moments) {
  for (const Slab& slab : slabs_) {
    UploadValue(slab);
    if (moments == nullptr || !slab.trained) continue;
    for (const SlabPart& part : slab.parts) {
      const AdamW::Moments& m = moments->moments()[index_.at(part.parameter)];
      CHECK_EQ(std::ssize(m.first), part.parameter->MyShard().size());
      const size_t bytes = m.first.size() * sizeof(float);
      memory_.device().CopyIn(first_.data() + part.moments, m.first.data(), bytes);
      memory_.device().CopyIn(second_.data() + part.moments, m.second.data(), bytes);
    }
  }
}

template <typename C>
void DeviceParameters<C>::ToHost(AdamW* moments) {
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;  // the host has the value
    for (const SlabPart& part : slab.parts) {
      std::vector<float>& values = part.parameter->value;
      memory_.device().CopyOut(values.data(), values_.data() + part.offset,
                               values.size() * sizeof(float));
      if (moments == nullptr) continue;
      AdamW::Moments& m = moments->moments()[index_.at(part.parameter)];
      const size_t bytes = m.first.size() * sizeof(float);
      memory_.device().CopyOut(m.first.data(), first_.data() + part.moments, bytes);
      memory_.device().CopyOut(m.second.data(), second_.data() + part.moments, bytes);
    }
  }
}

template <typename C>
void DeviceParameters<C>::GradientsToHost() {
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;
    for (const auto& [p, offset, moments] : slab.parts) {
      p->gradient.resize(p->value.size());
      memory_.device().CopyOut(p->gradient.data(), gradients_.data() + offset,
                               p->gradient.size() * sizeof(float));
    }
  }
}

// Adjacent slabs of one group are one message. The gaps between them are zero on all ranks.
template <typename C>
void DeviceParameters<C>::StartSums(Range slabs) {
  if (ranks_.groups().all == nullptr) return;
  ranks_.Fork();
  const auto end = static_cast<size_t>(slabs.end);
  for (auto i = static_cast<size_t>(slabs.begin); i < end;) {
    const size_t first = i;
    Collectives* const group = GroupOf(slabs_[first]);
    while (i < end && !summed_[i] && GroupOf(slabs_[i]) == group) summed_[i++] = true;
    if (i == first) {
      ++i;
      continue;
    }
    const int64_t begin = slabs_[first].offset;
    const int64_t count = EndOf(i - 1) - begin;
    if (group == nullptr) continue;
    const profile::Span message =
        ranks_.Message("sum gradients", count * static_cast<int64_t>(sizeof(float)));
    group->AllReduceSum(gradients_.data() + begin, static_cast<size_t>(count));
  }
}

// While the last sums run, the squares of the gradients that are complete already are summed.
template <typename C>
void DeviceParameters<C>::SumGradients() {
  ranks_.Join();
  std::vector<bool> complete = summed_;
  for (size_t i = 0; i < slabs_.size(); ++i)
    if (GroupOf(slabs_[i]) == nullptr) complete[i] = true;
  StartSums({0, slabs()});
  squared_.assign(slabs_.size(), false);
  SquareSums(complete);
  ranks_.Join();
  summed_.assign(slabs_.size(), false);
}

template <typename C>
void DeviceParameters<C>::SquareSums(const std::vector<bool>& slabs) {
  const profile::Span span = ranks_.Operation("gradient norm");
  for (size_t i = 0; i < slabs_.size();) {
    const size_t first = i;
    while (i < slabs_.size() && slabs[i]) squared_[i++] = true;
    if (i == first) {
      ++i;
      continue;
    }
    const int64_t begin = slabs_[first].offset;
    ops_.SquareSums(gradients_.data() + begin, EndOf(i - 1) - begin,
                    sums_.data() + begin / Shards::kBlock);
  }
}

template <typename C>
void DeviceParameters<C>::GatherShards() {
  for (const Slab& slab : slabs_)
    if (slab.trained && slab.sharded) GatherShards(slab, *GroupOf(slab));
}

// A message has the shards of member 0 of all parts, then those of member 1, and so on.
template <typename C>
void DeviceParameters<C>::GatherShards(const Slab& slab, Collectives& group) {
  DeviceArray<float> message(memory_, slab.count);
  // Calls visit(member, place in the message, place of the values, bytes).
  const auto for_shards = [&](const auto& visit) {
    float* at = message.data();
    for (int member = 0; member < group.size(); ++member) {
      for (const auto& [p, offset, moments] : slab.parts) {
        const Range shard = p->shards.Of(member, std::ssize(p->value));
        visit(member, at, values_.data() + offset + shard.begin,
              shard.size() * static_cast<int64_t>(sizeof(float)));
        at += shard.size();
      }
    }
  };
  std::vector<size_t> bytes(static_cast<size_t>(group.size()));
  const float* mine = nullptr;
  for_shards([&](int member, float* at, const float* values, int64_t size) {
    bytes[static_cast<size_t>(member)] += static_cast<size_t>(size);
    if (member != group.rank()) return;
    if (mine == nullptr) mine = at;
    ops_.Copy(at, values, size);
  });
  ranks_.Fork();
  {
    const profile::Span span = ranks_.Message("gather shards", message.bytes());
    group.AllGatherV(mine, message.data(), bytes);
  }
  ranks_.Join();
  for_shards([&](int member, const float* at, float* values, int64_t size) {
    if (member != group.rank()) ops_.Copy(values, at, size);
  });
  ops_.Round(value(slab), copies_.data() + slab.offset, slab.count);
  Quantize(slab);
}

template <typename C>
void DeviceParameters<C>::ClearGradients() {
  ops_.Zero(gradients_.data(), gradients_.bytes());
  squared_.assign(slabs_.size(), false);
}

template <typename C>
GradientNorm DeviceParameters<C>::Norm() {
  std::vector<bool> rest = squared_;
  rest.flip();
  SquareSums(rest);
  squared_.assign(slabs_.size(), false);
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
  for (const auto& [p, offset, moments] : slab.parts) {
    std::vector<float> gradient(p->value.size());
    memory_.device().CopyOut(gradient.data(), gradients_.data() + offset,
                             gradient.size() * sizeof(float));
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
  squared_.assign(slabs_.size(), false);
  const profile::Span span = ranks_.Operation("AdamW");
  for (const Slab& slab : slabs_) {
    if (!slab.trained) continue;
    update.keep = slab.decay ? keep : 1.0f;
    const auto apply = [&](int64_t at, int64_t count, int64_t moment) {
      ops_.AdamW(update, count, values_.data() + at, gradients_.data() + at, first_.data() + moment,
                 second_.data() + moment, copies_.data() + at);
    };
    if (!slab.sharded) {
      apply(slab.offset, slab.count, slab.parts.front().moments);
      Quantize(slab);
      continue;
    }
    for (const SlabPart& part : slab.parts) {
      const Range shard = part.parameter->MyShard();
      if (shard.size() > 0) apply(part.offset + shard.begin, shard.size(), part.moments);
    }
    ops_.Zero(gradient(slab), slab.count * static_cast<int64_t>(sizeof(float)));  // other shards
  }
}

template class DeviceParameters<float>;
template class DeviceParameters<BF16>;

}  // namespace switchyard::train
