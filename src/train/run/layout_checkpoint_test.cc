// A run resumes in another layout.
#include <gmock/gmock.h>

#include "core/temporary_directory.h"
#include "core/testing.h"
#include "train/run/test_layouts.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using testing::LayoutResult;
using testing::RunLayout;

class LayoutCheckpoints : public ::testing::Test {
 protected:
  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("deepseek_v3"));
  const Batch batch = testing::RandomBatch({9, 4, 1, 7, 12, 3, 5, 8}, config.vocab_size, 6);
};

TEST_F(LayoutCheckpoints, AnyLayoutResumesFromAnyOther) {
  const LossOptions losses{.balance = {.sequence = 0.01}, .mtp_layers = 1};
  const LayoutResult straight = RunLayout(config, batch, {.losses = losses, .steps = 15});
  fs::path last;
  int64_t steps = 0;
  std::vector<double> curve;
  LayoutResult found;
  for (const Layout& layout :
       {Layout{.tp = 2, .ep = 2}, Layout{.ep = 2, .dp = 2, .pp = 2},
        Layout{.tp = 2, .ep = 4, .dp = 2}, Layout{.tp = 4, .pp = 2}, Layout{}}) {
    const fs::path next = dir_ / layout.ToString();
    found =
        RunLayout(config, batch,
                  {.layout = layout, .losses = losses, .steps = 3, .resume = last, .save = next});
    curve.insert(curve.end(), found.curve.begin(), found.curve.end());
    last = next;
    steps += 3;
    // One rank can load the checkpoint as a model, bitwise equal.
    testing::OneRank<float> rank(config, losses);
    rank.model.Load(next);
    for (const Parameter<float>* p : rank.model.parameters())
      EXPECT_EQ(p->value, found.values.at(p->name)) << p->name << " of " << layout.ToString();
  }
  EXPECT_EQ(steps, 15);
  for (size_t step = 0; step < curve.size(); ++step)
    EXPECT_NEAR(curve[step], straight.curve[step], 1e-5 * straight.curve[step]) << step;
  for (const auto& [name, value] : straight.values)
    EXPECT_LT(testing::RelativeError(found.values.at(name), value), 1e-4) << name;
}

TEST_F(LayoutCheckpoints, RanksLoadTheirPartsOfACheckpoint) {
  const LayoutResult one = RunLayout(config, batch, {.save = dir_ / "whole"});
  const Layout layout{.tp = 2, .ep = 2, .pp = 2};
  RunRankThreads(layout.ranks(), LayoutRanks::BytesPerRank(layout) + (1 << 20),
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto ranks = LayoutRanks::Create(arena, layout, rank);
                   ThreadPool pool(1);
                   const ExpertExchange exchange(*ranks->memory, ranks->place.EpGroup(), config,
                                                 {.tokens = 1}, pool);
                   Model<float> model(config, {}, ranks->layer_ranks(exchange.ranks()), pool,
                                      ranks->place.Stage(config));
                   model.Load(dir_ / "whole");
                   for (const Parameter<float>* p : model.parameters()) {
                     const std::vector<float>& whole = one.values.at(p->name);
                     for (size_t i = 0; i < p->value.size(); ++i) {
                       const int64_t at = p->slice.IndexInWhole(p->shape, static_cast<int64_t>(i));
                       ASSERT_EQ(p->value[i], whole[at]) << p->name;
                     }
                   }
                 });
}

}  // namespace
}  // namespace switchyard::train
