#include "train/run/layout.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "comm/device/staged_rounds.h"
#include "core/check.h"
#include "core/error.h"
#include "moe/types.h"
#include "train/gradients.h"

namespace switchyard::train {
namespace {

// `count` ranks starting at `first` with stride `step`.
std::vector<int> Run(int first, int count, int step) {
  std::vector<int> ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = first + i * step;
  return ranks;
}

void CheckSizes(const Layout& layout) {
  const std::pair<const char*, int> sizes[] = {
      {"--tp", layout.tp}, {"--ep", layout.ep}, {"--dp", layout.dp}, {"--pp", layout.pp}};
  for (const auto& [flag, size] : sizes)
    if (size < 1) throw Invalid("{} {}: want 1 or more", flag, size);
  if (layout.stage_ranks() % layout.ep != 0) {
    throw Invalid("--ep {}: want a divisor of --tp {} times --dp {}", layout.ep, layout.tp,
                  layout.dp);
  }
}

void CheckTensorParallel(int tp, const ModelConfig& config) {
  if (tp == 1) return;
  const AttentionConfig& attention = config.attention;
  const auto divides = [&](int64_t n, const char* what) {
    if (n % tp != 0) throw Invalid("--tp {}: does not divide the model's {} {}", tp, n, what);
  };
  const auto suffices = [&](int64_t n, const char* what) {
    if (n > 0 && n < tp) throw Invalid("--tp {}: exceeds the model's {} {}", tp, what, n);
  };
  divides(attention.heads, "attention heads");
  if (attention.kind == AttentionConfig::Kind::kGrouped) {
    divides(attention.kv_heads, "key-value heads");
    if (attention.qk_norm == AttentionConfig::QkNorm::kWhole) {
      throw Invalid(
          "--tp {}: {} normalizes queries over all heads together, which cannot be partitioned; "
          "use --dp",
          tp, config.architecture);
    }
  }
  suffices(config.vocab_size, "vocab_size");
  suffices(config.intermediate, "intermediate_size");
  if (config.moe) suffices(config.moe->shared_intermediate, "shared expert's size");
}

}  // namespace

std::string Layout::ToString() const {
  return fmt::format("tp {}, ep {}, dp {}, pp {}", tp, ep, dp, pp);
}

void CheckLayout(const Layout& layout, const ModelConfig& config) {
  CheckSizes(layout);
  CheckTensorParallel(layout.tp, config);
  if (layout.ep > 1 && !config.moe) {
    throw Invalid("--ep {}: the model ({}) has no experts", layout.ep, config.architecture);
  }
  if (config.moe && layout.ep > config.moe->router.num_experts) {
    throw Invalid("--ep {}: exceeds the model's {} experts", layout.ep,
                  config.moe->router.num_experts);
  }
  if (layout.pp > config.num_layers()) {
    throw Invalid("--pp {}: exceeds the model's {} layers", layout.pp, config.num_layers());
  }
}

RankCoordinates::RankCoordinates(const Layout& shape, int world_rank)
    : layout(shape), rank(world_rank) {
  CheckSizes(layout);
  CHECK(rank >= 0 && rank < layout.ranks());
  pp = rank / layout.stage_ranks();
  in_stage = rank % layout.stage_ranks();
  dp = in_stage / layout.tp;
  tp = in_stage % layout.tp;
  ep = in_stage % layout.ep;
}

std::vector<int> RankCoordinates::WorldGroup() const { return Run(0, layout.ranks(), 1); }
std::vector<int> RankCoordinates::StageGroup() const {
  return Run(RankOf(pp, 0), layout.stage_ranks(), 1);
}
std::vector<int> RankCoordinates::TpGroup() const { return Run(rank - tp, layout.tp, 1); }
std::vector<int> RankCoordinates::CopiesGroup() const {
  return Run(RankOf(pp, tp), layout.dp, layout.tp);
}
std::vector<int> RankCoordinates::EpGroup() const { return Run(rank - ep, layout.ep, 1); }
std::vector<int> RankCoordinates::ExpertCopiesGroup() const {
  return Run(RankOf(pp, ep), layout.stage_ranks() / layout.ep, layout.ep);
}
std::vector<int> RankCoordinates::EmbeddingGroup() const {
  if (layout.pp == 1) return {rank};
  const int other = pp == 0 ? layout.pp - 1 : pp;
  return {RankOf(0, in_stage), RankOf(other, in_stage)};
}

StageRange RankCoordinates::Stage(const ModelConfig& config) const {
  const Range layers = EvenPart(config.num_layers(), layout.pp, pp);
  return {.first_layer = layers.begin,
          .last_layer = layers.end,
          .first = pp == 0,
          .last = pp + 1 == layout.pp};
}

std::string RankCoordinates::Title() const {
  return fmt::format("PP{} DP{} TP{} EP{}", pp, dp, tp, ep);
}

LayerRanks LayoutRanks::layer_ranks(const ExpertRanks& experts) const {
  Collectives* const all = stage.get();
  return {.experts = experts,
          .sum = [all](std::span<float> v) { all->AllReduceSum(v.data(), v.size()); },
          .tp = tp.get()};
}

size_t LayoutRanks::BytesPerRank(const Layout& layout) {
  const RankCoordinates place(layout, 0);
  size_t bytes = 0;
  for (const std::vector<int>& group : {place.WorldGroup(), place.StageGroup(), place.TpGroup(),
                                        place.EpGroup(), place.StageGroup(), place.CopiesGroup(),
                                        place.ExpertCopiesGroup(), place.EmbeddingGroup()}) {
    if (group.size() == 1) continue;
    bytes +=
        StagedRounds::BytesPerRank(static_cast<int>(group.size()), Communicator::kStagingBytes);
  }
  return bytes;
}

std::unique_ptr<LayoutRanks> LayoutRanks::Create(std::shared_ptr<SharedArena> arena,
                                                 const Layout& layout, int rank,
                                                 SymmetricMemory::Options options) {
  auto ranks = std::make_unique<LayoutRanks>();
  ranks->place = RankCoordinates(layout, rank);
  const RankCoordinates& place = ranks->place;
  ranks->memory = std::make_shared<SymmetricMemory>(std::move(arena), rank, options);
  const auto group = [&](std::vector<int> members, const char* name) {
    return std::make_unique<Communicator>(*ranks->memory, std::move(members), name);
  };
  ranks->world = group(place.WorldGroup(), "world");
  ranks->stage = group(place.StageGroup(), "stage");
  ranks->tp = group(place.TpGroup(), "tp");
  ranks->experts = group(place.EpGroup(), "experts");
  ranks->stage_sums = group(place.StageGroup(), "stage gradients");
  ranks->copies = group(place.CopiesGroup(), "dp gradients");
  ranks->expert_copies = group(place.ExpertCopiesGroup(), "expert gradients");
  ranks->embedding = group(place.EmbeddingGroup(), "embedding gradients");
  return ranks;
}

LearnerLinks::LearnerLinks(LayoutRanks& ranks, size_t floats, SymmetricMemory::Options options,
                           const std::shared_ptr<SharedArena>& sums)
    : ranks_(ranks) {
  const RankCoordinates& place = ranks.place;
  if (place.layout.pp > 1) {
    link_ = std::make_unique<StageLink>(*ranks.memory, place.previous(), place.next(),
                                        StageLinkOptions{.floats = floats});
  }
  if (sums == nullptr) return;
  sums_ranks_ = LayoutRanks::Create(sums, place.layout, place.rank, options);
  const GradientGroups groups = sums_ranks_->gradient_groups();
  sums_ = std::make_unique<GradientSums>(
      [groups](GradientSums::Parameters parameters) { SumGradients(parameters, groups); }, sums);
}

size_t LearnerLinks::BytesPerRank(const Layout& layout, size_t floats) {
  return layout.pp > 1 ? StageLink::BytesPerRank({.floats = floats}) : 0;
}

LearnerRanks LearnerLinks::ranks() const {
  LearnerRanks ranks = ranks_.learner_ranks();
  ranks.stages = ranks_.place.layout.pp;
  ranks.stage_index = ranks_.place.pp;
  ranks.link = link_.get();
  ranks.early_sums = sums_.get();
  return ranks;
}

}  // namespace switchyard::train
