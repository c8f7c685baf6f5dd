// Gradients in float64 on several layouts. Rounding errors are so small that a larger difference is
// a bug.
#include <gmock/gmock.h>

#include <mutex>

#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

using Gradients = std::map<std::string, std::vector<double>>;

LossOptions Options() {
  return {.balance = {.batch = 0.5, .sequence = 0.4, .z = 0.1}, .mtp_layers = 2};
}

// Sums the gradients of one stage over its ranks. For partitioned tensors and experts, each rank
// has a piece. For all other tensors, each rank has a partial sum.
Gradients Of(const ModelConfig& config, const Batch& batch, const Layout& layout) {
  const ExpertExchangeOptions options{.tokens = batch.size(), .element_bytes = sizeof(double)};
  Gradients sums;
  std::mutex mutex;
  RunRankThreads(
      layout.ranks(),
      LayoutRanks::BytesPerRank(layout) + ExpertExchange::BytesPerRank(layout.ep, config, options) +
          4096,
      [&](int rank, const std::shared_ptr<SharedArena>& arena) {
        const auto ranks = LayoutRanks::Create(arena, layout, rank);
        ThreadPool pool(1);
        const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), config, options,
                                      pool);
        Model<double> model(config, Options(), ranks->layer_ranks(exchange.ranks()), pool);
        model.Initialise(7, 0.4);
        const Range mine = EvenPart(batch.sequences(), layout.dp, ranks->place.dp);
        Pass<double> pass;
        model.Run(testing::Sequences(batch, mine.begin, mine.end), testing::SizeOf(batch), true,
                  &pass);
        const std::lock_guard lock(mutex);
        for (const Parameter<double>* p : model.parameters()) {
          if (p->gradient.empty()) continue;
          std::vector<double>& sum = sums[p->name];
          size_t count = 1;
          for (const int64_t n : p->whole_shape()) count *= static_cast<size_t>(n);
          sum.resize(count);
          for (size_t i = 0; i < p->gradient.size(); ++i) {
            sum[p->slice.IndexInWhole(p->shape, static_cast<int64_t>(i))] += p->gradient[i];
          }
        }
      });
  return sums;
}

class ExactGradients : public ::testing::TestWithParam<bool> {};

TEST_P(ExactGradients, DoNotDependOnTheLayout) {
  const bool replay = GetParam();  // whether the batch gives the experts of some tokens
  for (const char* kind : {"qwen3_moe", "deepseek_v2", "deepseek_v3"}) {
    const ModelConfig config = ParseModelConfig(testing::SmallConfig(kind));
    Batch batch = testing::RandomBatch({9, 4, 1, 7, 2}, config.vocab_size, 6);
    if (replay) batch.experts = testing::RandomExperts(config, batch.size(), 0.7, 2);
    const Gradients one = Of(config, batch, {});
    for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .ep = 2}, Layout{.dp = 2},
                                 Layout{.tp = 2, .ep = 4, .dp = 2}}) {
      const Gradients found = Of(config, batch, layout);
      ASSERT_EQ(found.size(), one.size());
      for (const auto& [name, gradient] : one) {
        EXPECT_LT(testing::RelativeError(found.at(name), gradient), 1e-11)
            << name << " of " << kind << ", " << layout.ToString();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, ExactGradients, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Given" : "Selected"; });

}  // namespace
}  // namespace switchyard::train
