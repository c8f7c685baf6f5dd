#include "train/optimizer/catalog.h"

#include <gmock/gmock.h>

#include <functional>
#include <memory>

#include "comm/device/communicator.h"
#include "core/testing.h"

namespace switchyard::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rank r's part of a tensor [4, 6] whose element i is i: two rows, or three columns.
Parameter<float> Part(const std::string& name, int dimension, int rank) {
  Parameter<float> p{.name = name};
  p.shape = dimension == 0 ? std::vector<int64_t>{2, 6} : std::vector<int64_t>{4, 3};
  p.slice = {.whole = {4, 6}, .dimension = dimension, .begin = rank * p.shape[dimension]};
  for (int64_t i = 0; i < 12; ++i)
    p.value.push_back(static_cast<float>(p.slice.IndexInWhole(p.shape, i)));
  p.gradient = p.value;
  return p;
}

void OnRanks(int ranks, const std::function<void(int rank, Collectives* all)>& body) {
  const MeshShape shape{.tp = ranks, .ep = ranks};
  RunRankThreads(ranks, RankComm::BytesPerRank(shape) + 4096,
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   body(rank, RankComm::Create(arena, shape, rank)->tp.get());
                 });
}

TEST(CatalogTest, PutsPiecesTogetherAtTheirWriter) {
  OnRanks(2, [](int rank, Collectives* all) {
    Parameter<float> rows = Part("rows", 0, rank), columns = Part("columns", 1, rank);
    Parameter<float> norm{.name = "norm", .shape = {3}, .value = {1, 2, 3}};
    const Catalog catalog({&rows, &columns, &norm}, all, all);
    // Partitioned tensors are written in round-robin order, others by the lowest rank.
    EXPECT_EQ(catalog.tensors().at("columns").writer, 0);
    EXPECT_EQ(catalog.tensors().at("rows").writer, 1);
    EXPECT_EQ(catalog.tensors().at("norm").writer, 0);
    EXPECT_EQ(catalog.owned().size(), rank == 0 ? 3u : 2u);
    for (const Parameter<float>* p : {&rows, &columns}) {
      EXPECT_TRUE(catalog.GroupWrites(p->name));
      const std::vector<float> whole = catalog.Assemble(*p, p->value);
      if (catalog.tensors().at(p->name).writer != rank) {
        EXPECT_TRUE(whole.empty());
        continue;
      }
      ASSERT_EQ(whole.size(), 24u);
      for (int i = 0; i < 24; ++i) EXPECT_EQ(whole[i], static_cast<float>(i)) << p->name;
    }
    // Ordered by name, then by position.
    const double mine = 10 + rank;
    std::vector<double> numbers(catalog.owned().size(), mine);
    EXPECT_THAT(catalog.Gather(numbers), ElementsAre(10, 11, 10, 10, 11));
  });
}

TEST(CatalogTest, RefusesPiecesThatMakeNoWhole) {
  const auto error = [](const std::function<void(int, Parameter<float>*)>& change) {
    return ErrorOf([&] {
      OnRanks(2, [&](int rank, Collectives* all) {
        Parameter<float> rows = Part("rows", 0, rank);
        change(rank, &rows);
        const Catalog catalog({&rows}, all, all);
      });
    });
  };
  EXPECT_THAT(error([](int, Parameter<float>* p) { p->slice.begin = 0; }),
              HasSubstr("tensor rows: the ranks' parts do not cover the whole of [4, 6]"));
  EXPECT_THAT(error([](int rank, Parameter<float>* p) {
                p->slice.whole = {4, 6 + rank};
              }),
              HasSubstr("tensor rows is [4, 6] on rank 0 and [4, 7] on rank 1"));
  EXPECT_EQ(error([](int, Parameter<float>*) {}), "no error");
}

}  // namespace
}  // namespace switchyard::train
