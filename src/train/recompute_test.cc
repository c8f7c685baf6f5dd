// Selective recomputation and separate weight gradients: equal bits, and the formula of the
// activations' memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "schedule/plan.h"
#include "train/run/test_layouts.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

constexpr BackwardOptions kRecomputed[] = {{.recompute = Recompute::kMoe},
                                           {.recompute = Recompute::kAttention},
                                           {.recompute = Recompute::kLayer}};
constexpr BackwardOptions kSeparate = {.separate_weights = true};

struct Learned {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> gradients;
  bool operator==(const Learned&) const = default;
};

// Two micro-batches, the second one shorter.
Learned Learn(const ModelConfig& config, const LossOptions& options, ProductDtype products,
              int threads, const BackwardOptions& backward) {
  ThreadPool pool(threads);
  Model<float> model(config, options, {}, pool, {}, products, backward);
  model.Initialise(7, 0.4);
  Pass<float> pass;
  Learned out;
  for (const std::vector<int>& lengths : {std::vector{9, 4, 1, 30}, std::vector{5, 2}}) {
    const Batch batch = testing::RandomBatch(lengths, config.vocab_size, 6);
    const Losses losses = model.Run(batch, testing::SizeOf(batch), true, &pass);
    out.losses.insert(out.losses.end(), {losses.main, losses.mtp, losses.balance});
  }
  out.gradients = testing::Gradients(model);
  return out;
}

class RecomputeTest : public ::testing::TestWithParam<const char*> {
 protected:
  RecomputeTest() { config_.layers.resize(4, config_.layers.back()); }

  ModelConfig config_ = ParseModelConfig(testing::SmallConfig(GetParam()));
};

TEST_P(RecomputeTest, ChangesNoBit) {
  const LossOptions options{.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 1};
  // One thread computes the experts by tiles that gather their rows, five threads by products.
  for (const int threads : {1, 5}) {
    for (const ProductDtype products : {ProductDtype::kFloat32, ProductDtype::kBFloat16}) {
      const Learned wanted = Learn(config_, options, products, threads, {});
      for (const BackwardOptions& backward : kRecomputed) {
        EXPECT_EQ(Learn(config_, options, products, threads, backward), wanted)
            << static_cast<int>(backward.recompute) << ", " << threads << " threads";
      }
      EXPECT_EQ(Learn(config_, options, products, threads, kSeparate), wanted)
          << "separate weights, " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecomputeTest,
                         ::testing::Values("mixtral", "qwen3_moe", "olmoe", "deepseek_v2",
                                           "deepseek_v3"),
                         [](const auto& info) { return info.param; });

// Floats that are allocated for the activations of a layer.
size_t Floats(const LayerState<float>& s) {
  size_t floats = 0;
  const auto add = [&](const auto&... each) { ((floats += each.capacity()), ...); };
  const auto add_network = [&](const FeedForwardState<float>& f) { add(f.gate, f.up, f.middle); };
  const AttentionState<float>& a = s.attention;
  const MoeState<float>& m = s.moe;
  add(s.x, s.normed, s.after, s.after_normed, s.dense_output, s.all_normed, s.all_after_normed);
  add(a.q_a, a.q_a_normed, a.q_raw, a.k_raw, a.q, a.k, a.v, a.latent, a.latent_normed, a.kv,
      a.attended, a.log_sums);
  add(m.router.logits, m.router.scores, m.router.weights, m.router.dprobabilities, m.router.dz);
  add(m.outputs, m.dweights, m.rows, m.results, m.drows, m.row_weights, m.row_dweights, m.all_x,
      m.shared_output, m.dshared);
  add_network(s.dense);
  add_network(m.experts);
  add_network(m.shared);
  return floats;
}

size_t Floats(const Pass<float>& pass) {
  size_t floats = 0;
  for (const LayerState<float>& layer : pass.layers) floats += Floats(layer);
  for (const DepthState<float>& d : pass.depths) {
    for (const auto* v :
         {&d.stream, &d.last, &d.final, &d.dfinal, &d.embedded, &d.previous, &d.joined})
      floats += v->capacity();
  }
  return floats;
}

size_t Floats(const SpareStates<LayerState<float>>& spares) {
  size_t floats = 0;
  for (const auto& state : spares.free()) floats += Floats(*state);
  return floats;
}

// Forward and backward of a micro-batch. Returns the floats that are allocated when the backward
// pass has ended, and the separate weight gradients have not been computed.
size_t RunAndCount(Model<float>& model, const Batch& batch) {
  Pass<float> pass;
  model.Begin(batch, testing::SizeOf(batch), &pass);
  model.Forward(&pass);
  model.Heads(true, &pass);
  for (int64_t layer = model.layers() - 1; layer >= 0; --layer) {
    for (const Phase phase : schedule::BackwardPhases(true)) model.Backward(layer, phase, &pass);
  }
  size_t floats = Floats(pass) + Floats(model.spares());
  for (const LayerState<float>& layer : pass.layers)
    floats += static_cast<size_t>(layer.later.held_count());
  return floats;
}

struct Allocated {
  size_t floats = 0;
  int64_t counted = 0;    // by CountActivations
  int64_t undropped = 0;  // what is counted without recomputation
};

// All ranks have the same batch or its share, and hold equal shares of the experts. Sums over the
// ranks, because experts get different numbers of rows.
Allocated Allocate(const ModelConfig& config, const LossOptions& options, const Layout& layout,
                   int threads, const BackwardOptions& backward) {
  const Batch batch = testing::RandomBatch({9, 4, 1, 30}, config.vocab_size, 6);
  const ExpertExchangeOptions exchange_options{.tokens = batch.size()};
  Allocated sum;
  std::mutex mutex;
  RunRankThreads(layout.ranks(),
                 LayoutRanks::BytesPerRank(layout) +
                     ExpertExchange::BytesPerRank(layout.ep, config, exchange_options) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto ranks = LayoutRanks::Create(arena, layout, rank);
                   ThreadPool pool(threads);
                   const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), config,
                                                 exchange_options, pool);
                   Model<float> model(config, options, ranks->layer_ranks(exchange.ranks()), pool,
                                      {}, ProductDtype::kFloat32, backward);
                   model.Initialise(7, 0.4);
                   const size_t floats = RunAndCount(model, batch);
                   const ActivationCounts counts = model.CountActivations(batch.size());
                   const std::lock_guard lock(mutex);
                   sum.floats += floats;
                   sum.counted += counts.kept + counts.dropped();
                   sum.undropped += counts.kept + counts.undropped;
                 });
  return sum;
}

TEST_P(RecomputeTest, TheFormulaCountsWhatIsAllocated) {
  const LossOptions options{.balance = {.sequence = 0.4}};
  const bool tp = std::string(GetParam()) != "olmoe";
  for (const Layout& layout : {Layout{}, Layout{.tp = tp ? 2 : 1}}) {
    for (const int threads : {1, 5}) {
      SCOPED_TRACE(layout.ToString() + ", threads " + std::to_string(threads));
      const Allocated all = Allocate(config_, options, layout, threads, {});
      EXPECT_EQ(static_cast<int64_t>(all.floats), all.counted);
      int64_t least = all.counted;
      for (const BackwardOptions& backward : kRecomputed) {
        const Allocated found = Allocate(config_, options, layout, threads, backward);
        const int kind = static_cast<int>(backward.recompute);
        EXPECT_EQ(static_cast<int64_t>(found.floats), found.counted) << kind;
        EXPECT_EQ(found.undropped, all.counted) << kind;
        EXPECT_LT(found.counted, all.counted) << kind;
        least = std::min(least, found.counted);
        if (backward.recompute == Recompute::kLayer) {
          EXPECT_EQ(found.counted, least);
        }
      }
      const Allocated separate = Allocate(config_, options, layout, threads, kSeparate);
      EXPECT_EQ(static_cast<int64_t>(separate.floats), separate.counted);
    }
  }
}

// With experts on other ranks, and all activations kept. Buffers for dropped rows may be longer
// than needed, because they grow with the experts' rows.
TEST_P(RecomputeTest, TheFormulaCountsExpertsOfSeveralRanks) {
  const LossOptions options{.mtp_layers = 1};
  for (const int threads : {1, 5}) {
    const Layout layout{.ep = 2, .dp = 2};
    const Allocated all = Allocate(config_, options, layout, threads, {});
    EXPECT_LE(static_cast<int64_t>(all.floats), all.counted);
    EXPECT_GE(static_cast<double>(all.floats), 0.9 * static_cast<double>(all.counted));
    for (const BackwardOptions& backward : kRecomputed) {
      const Allocated found = Allocate(config_, options, layout, threads, backward);
      EXPECT_LT(found.counted, all.counted);
      EXPECT_LT(found.floats, all.floats);
    }
  }
}

}  // namespace
}  // namespace switchyard::train
