// Runs small models over ranks in any layout, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "train/optimizer/adamw.h"
#include "train/run/checkpoint.h"
#include "train/run/layout.h"
#include "train/test_training.h"

namespace switchyard::train::testing {

// Sequences [first, last) of a batch.
inline Batch Sequences(const Batch& batch, int64_t first, int64_t last) {
  Batch part;
  const int32_t begin = batch.begins[first], end = batch.begins[last];
  part.tokens.assign(batch.tokens.begin() + begin, batch.tokens.begin() + end);
  part.targets.assign(batch.targets.begin() + begin, batch.targets.begin() + end);
  if (!batch.experts.empty()) {
    const auto width = std::ssize(batch.experts) / batch.size();
    part.experts.assign(batch.experts.begin() + begin * width, batch.experts.begin() + end * width);
  }
  for (int64_t s = first; s <= last; ++s) part.begins.push_back(batch.begins[s] - begin);
  return part;
}

// Passes hidden states and gradients between pipeline stages that run as threads.
class ThreadLink {
 public:
  void Send(int from, int to, std::vector<float> stream) {
    const std::lock_guard lock(mutex_);
    queues_[{from, to}].push_back(std::move(stream));
    arrived_.notify_all();
  }
  std::vector<float> Receive(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& queue = queues_[{from, to}];
    if (!arrived_.wait_for(lock, std::chrono::seconds(60), [&] { return !queue.empty(); }))
      throw Error(ErrorKind::kTimeout, "a stage waits for another");
    std::vector<float> stream = std::move(queue.front());
    queue.pop_front();
    return stream;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<std::vector<float>>> queues_;
};

struct LayoutRun {
  Layout layout;
  // [dp + 1] sequence boundaries of the data-parallel parts; empty: even parts.
  std::vector<int64_t> borders = {};
  LossOptions losses;
  int64_t steps = 1;
  bool zero = false;                        // --zero-stage 1
  double clip = 0;                          // limit of the gradient norm; 0: none
  std::filesystem::path resume, save = {};  // checkpoints to load and to write; empty: none
};

using Tensors = std::map<std::string, std::vector<float>>;

// Results of a run over all ranks. Tensors are whole, assembled from the pieces of the ranks.
struct LayoutResult {
  Tensors gradients;  // gradients of the last step; not with LayoutRun::zero
  Tensors values;     // parameters after the last step
  std::vector<double> curve, norms;
  std::vector<int64_t> moment_bytes;  // of each rank
  std::vector<std::vector<float>>
      loads;  // [MoE layers in order of the stages, E], of the last step
};

// Copies a rank's piece into the whole tensor. Overlaps with pieces of other ranks must be equal.
inline void Put(const Parameter<float>& p, const std::vector<float>& part, Tensors* wholes,
                std::map<std::string, std::vector<bool>>* known) {
  size_t count = part.empty() ? 0 : 1;
  for (const int64_t n : p.whole_shape()) count *= static_cast<size_t>(n);
  std::vector<float>& whole = (*wholes)[p.name];
  std::vector<bool>& there = (*known)[p.name];
  whole.resize(count);
  there.resize(count);
  bool same = true;
  for (size_t i = 0; i < part.size(); ++i) {
    const int64_t at = p.slice.IndexInWhole(p.shape, static_cast<int64_t>(i));
    same = same && (!there[at] || whole[at] == part[i]);
    whole[at] = part[i];
    there[at] = true;
  }
  EXPECT_TRUE(same) << p.name << " differs between ranks";
}

inline void ExpectWhole(const std::map<std::string, std::vector<bool>>& known) {
  for (const auto& [name, there] : known)
    EXPECT_EQ(std::ranges::count(there, false), 0) << "no rank has all of " << name;
}

// Forward and backward of one micro-batch through this rank's stage.
inline Losses RunStage(Model<float>& model, const RankCoordinates& place, ThreadLink& link,
                       const Batch& batch, const StepSize& size, Pass<float>* pass) {
  model.Begin(batch, size, pass);
  std::vector<float>& stream = pass->depths[0].stream;
  const auto receive = [&](int from) {
    std::vector<float> rows = link.Receive(from, place.rank);
    EXPECT_EQ(rows.size(), stream.size());
    stream = std::move(rows);
  };
  if (place.previous() >= 0) receive(place.previous());
  model.Forward(pass);
  if (place.next() >= 0) link.Send(place.rank, place.next(), stream);
  model.Heads(true, pass);
  if (place.next() >= 0) receive(place.next());
  model.Backward(pass);
  if (place.previous() >= 0) link.Send(place.rank, place.previous(), stream);
  return pass->losses;
}

// AdamW steps from the weights of OneRank<float>(config, run.losses), or from a checkpoint.
inline LayoutResult RunLayout(const ModelConfig& config, const Batch& batch, const LayoutRun& run) {
  const StepSize size = SizeOf(batch);
  const Layout& layout = run.layout;
  CheckLayout(layout, config);
  const ExpertExchangeOptions exchange_options{.tokens = batch.size()};
  LayoutResult result;
  result.curve.resize(run.steps);
  result.norms.resize(run.steps);
  result.moment_bytes.resize(layout.ranks());
  std::vector<std::vector<std::vector<float>>> loads(layout.pp);
  std::map<std::string, std::vector<bool>> gradients_known, values_known;
  std::mutex mutex;
  ThreadLink link;
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    const auto ranks =
        LayoutRanks::Create(arena, layout, rank, {.timeout = std::chrono::seconds(60)});
    const RankCoordinates& place = ranks->place;
    ThreadPool pool(1);
    const ExpertExchange exchange(*ranks->memory, place.EpGroup(), config, exchange_options, pool);
    OneRank<float> whole(config, run.losses);  // gives the initial weights
    Model<float> model(config, run.losses, ranks->layer_ranks(exchange.ranks()), pool,
                       place.Stage(config));
    std::map<std::string, const Parameter<float>*> all;
    for (const Parameter<float>* p : whole.model.parameters()) all[p->name] = p;
    const std::vector<Parameter<float>*> parameters = model.parameters();
    for (Parameter<float>* p : parameters) {
      ASSERT_EQ(p->whole_shape(), all.at(p->name)->shape) << p->name;
      for (size_t i = 0; i < p->value.size(); ++i) {
        const int64_t at = p->slice.IndexInWhole(p->shape, static_cast<int64_t>(i));
        p->value[i] = all.at(p->name)->value[at];
      }
    }
    const GradientGroups groups = ranks->gradient_groups();
    if (run.zero) ShardMoments(parameters, groups);
    const Catalog catalog(parameters, ranks->world.get(), ranks->tp.get(), groups);
    AdamW adam(parameters, {.epsilon = 1e-3});
    result.moment_bytes[rank] = adam.moment_bytes();
    TrainerState state;
    if (!run.resume.empty()) state = LoadCheckpoint(run.resume, catalog, &adam);

    const Range even = EvenPart(batch.sequences(), layout.dp, place.dp);
    const Batch mine = run.borders.empty()
                           ? Sequences(batch, even.begin, even.end)
                           : Sequences(batch, run.borders[place.dp], run.borders[place.dp + 1]);
    Pass<float> pass;
    for (int64_t step = 0; step < run.steps; ++step) {
      model.ClearLoads();
      const double loss = RunStage(model, place, link, mine, size, &pass).total();
      SumGradients(parameters, groups);
      const GradientNorm norm = NormOfGradients(catalog, pool);
      std::unique_lock lock(mutex);
      result.curve[step] += loss;
      result.norms[step] = norm.norm;
      if (step + 1 == run.steps) {
        for (const Parameter<float>* p : parameters)
          if (!run.zero) Put(*p, p->gradient, &result.gradients, &gradients_known);
        std::vector<std::vector<float>>& sums = loads[place.pp];
        sums.resize(model.loads().size(), std::vector<float>(config.moe->router.num_experts));
        for (size_t l = 0; l < sums.size(); ++l)
          for (size_t e = 0; e < sums[l].size(); ++e) sums[l][e] += model.loads()[l][e];
      }
      lock.unlock();
      adam.Step(0.02, ClipScale(norm.norm, run.clip), pool);
      GatherShards(parameters, groups);
    }
    {
      const std::lock_guard lock(mutex);
      for (const Parameter<float>* p : parameters) Put(*p, p->value, &result.values, &values_known);
    }
    state.step += run.steps;
    if (!run.save.empty())
      SaveCheckpoint(run.save, catalog, &adam, state,
                     {.dtype = DType::kF32, .copied = {}, .aliases = model.aliases()});
  };
  RunRankThreads(layout.ranks(),
                 LayoutRanks::BytesPerRank(layout) +
                     ExpertExchange::BytesPerRank(layout.ep, config, exchange_options) + 4096,
                 body);
  ExpectWhole(values_known);
  for (auto& stage : loads)
    for (auto& layer : stage) result.loads.push_back(std::move(layer));
  return result;
}

}  // namespace switchyard::train::testing
