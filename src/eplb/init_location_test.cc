#include "eplb/init_location.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/safetensors_writer.h"
#include "core/temporary_directory.h"
#include "core/testing.h"
#include "eplb/array_file.h"
#include "eplb/planner.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> MapOf(const ExpertPlacement& placement) {
  const auto map = placement.physical_to_logical();
  return {map.begin(), map.end()};
}

std::vector<ExpertPlacement> Load(const std::string& location, int64_t layers, int experts,
                                  int redundant) {
  return LoadPlacements({.location = location,
                         .num_layers = layers,
                         .num_logical = experts,
                         .redundant = redundant,
                         .topology = {.ranks = 2}});
}

class LoadPlacementsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  // Three layers of four experts with one redundant expert.
  std::string ErrorOfFile(const std::string& text) {
    const std::string location = Write(text);
    const std::string error = ErrorOf([&] { Load(location, 3, 4, 1); });
    EXPECT_THAT(error, HasSubstr("--init-expert-location " + location));
    return error;
  }

  const TemporaryDirectory temporary_;
  const std::string path_ = (temporary_.path() / "placement.json").string();
};

TEST_F(LoadPlacementsTest, TrivialIsTheSameForAllLayers) {
  const auto all = Load("trivial", 3, 4, 1);
  ASSERT_EQ(all.size(), 3u);
  for (const ExpertPlacement& placement : all)
    EXPECT_THAT(MapOf(placement), ElementsAre(0, 1, 2, 3, 0));
}

TEST_F(LoadPlacementsTest, AFileHasARowForEachLayerOrOneForAll) {
  const auto each =
      Load(Write(R"({"physical_to_logical_map": [[3,2,1,0,0], null, [0,1,2,3,3]], "other": 1})"), 3,
           4, 1);
  ASSERT_EQ(each.size(), 3u);
  EXPECT_THAT(MapOf(each[0]), ElementsAre(3, 2, 1, 0, 0));
  EXPECT_THAT(MapOf(each[1]), ElementsAre(0, 1, 2, 3, 0));
  EXPECT_THAT(MapOf(each[2]), ElementsAre(0, 1, 2, 3, 3));
  const auto one = Load(Write(R"({"physical_to_logical_map": [[3,2,1,0]]})"), 3, 4, 0);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_THAT(MapOf(one[2]), ElementsAre(3, 2, 1, 0));
}

TEST_F(LoadPlacementsTest, ErrorsNameFlagFileAndLayer) {
  EXPECT_THAT(ErrorOf([] { Load("/no/such/file", 1, 4, 0); }, ErrorKind::kNotFound),
              AllOf(HasSubstr("--init-expert-location /no/such/file"), HasSubstr("trivial")));
  EXPECT_THAT(ErrorOf([] { Load("trivial", 1, 4, -1); }),
              HasSubstr("--ep-num-redundant-experts -1"));
  for (const char* no_map : {"", "[]", "{}", R"({"physical_to_logical_map": 1})",
                             R"({"physical_to_logical_map": []})", "{\"physical_to_logical_map\":"})
    EXPECT_THAT(ErrorOfFile(no_map), HasSubstr("physical_to_logical_map")) << no_map;
  EXPECT_THAT(ErrorOfFile(R"({"physical_to_logical_map": [[0,1,2,3,0],[0,1,2,3,0]]})"),
              HasSubstr("2 layers, but the model has 3"));

  const auto with_row = [&](const std::string& row) {
    return ErrorOfFile(R"({"physical_to_logical_map": [null, )" + row + ", null]}");
  };
  EXPECT_THAT(with_row("7"), HasSubstr("layer 1: not a list of expert ids"));
  EXPECT_THAT(with_row("[0,1,2,3]"),
              HasSubstr("layer 1: 4 physical experts; the model and --ep-num-redundant-experts "
                        "require 5"));
  EXPECT_THAT(with_row("[0,1,2,2,2]"),
              HasSubstr("layer 1: logical expert 3 has no physical expert"));
  for (const char* id : {"4", "-1", "1.5", "\"1\"", "null", "4294967296", "18446744073709551616"})
    EXPECT_THAT(with_row(fmt::format("[0,1,2,3,{}]", id)),
                HasSubstr("is not an expert id; the model has 0 to 3"))
        << id;
}

TEST_F(LoadPlacementsTest, ATensorIsAMapToo) {
  SafetensorsWriter writer;
  writer.Add("physical_to_logical_map", {3, 5},
             std::vector<int32_t>{3, 2, 1, 0, 0, -1, -1, -1, -1, -1, 0, 1, 2, 3, 3});
  writer.Write(path_);
  const auto each = Load(path_, 3, 4, 1);
  ASSERT_EQ(each.size(), 3u);
  EXPECT_THAT(MapOf(each[0]), ElementsAre(3, 2, 1, 0, 0));
  EXPECT_THAT(MapOf(each[1]), ElementsAre(0, 1, 2, 3, 0));
  EXPECT_THAT(MapOf(each[2]), ElementsAre(0, 1, 2, 3, 3));
  EXPECT_THAT(ErrorOf([&] { Load(path_, 2, 4, 1); }), HasSubstr("3 layers, but the model has 2"));
}

TEST_F(LoadPlacementsTest, TheFlagsValueMayBeJsonText) {
  const auto one = Load(R"( {"physical_to_logical_map": [[3,2,1,0,0]]})", 2, 4, 1);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_THAT(MapOf(one[1]), ElementsAre(3, 2, 1, 0, 0));
  EXPECT_EQ(Load(R"({"logical_count": [[9, 1, 1, 1], [0, 0, 0, 0]]})", 2, 4, 2).size(), 2u);
  EXPECT_THAT(ErrorOf([] { Load("{]", 1, 4, 0); }),
              AllOf(HasSubstr("--init-expert-location (JSON text): "), HasSubstr("parse error")));
  EXPECT_THAT(ErrorOf([] { Load(R"({"map": [1], "n": 2})", 1, 4, 0); }),
              HasSubstr("(JSON text): the file has map; want JSON"));
}

TEST_F(LoadPlacementsTest, TorchFilesOfSglangAreRead) {
  const auto map = Load(SWITCHYARD_TEST_DATA "/eplb/map.pt", 3, 4, 2);
  ASSERT_EQ(map.size(), 3u);
  EXPECT_THAT(MapOf(map[0]), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(MapOf(map[2]), ElementsAre(1, 0, 3, 2, 1, 0));
  EXPECT_EQ(Load(SWITCHYARD_TEST_DATA "/eplb/recording.pt", 3, 4, 2).size(), 3u);
  EXPECT_THAT(ErrorOf([] { Load(SWITCHYARD_TEST_DATA "/eplb/recording.pt", 2, 4, 2); }),
              HasSubstr("counts of 3 layers of 4 experts, but the model has 2 of 4"));
}

TEST_F(LoadPlacementsTest, ARecordedDistributionIsPlannedFor) {
  const LoadHistory loads = RandomLoads(6, 3, 16, 1.5, 1);
  SafetensorsWriter writer;
  writer.Add("logical_count", {6, 3, 16}, loads.counts);
  writer.Write(path_);
  for (const char* algorithm : {"auto", "deepseek"}) {
    const auto placed = LoadPlacements({.location = path_,
                                        .num_layers = 3,
                                        .num_logical = 16,
                                        .redundant = 4,
                                        .algorithm = algorithm,
                                        .topology = {.ranks = 4}});
    const Placement plan =
        PlanPlacement(ParseEplbAlgorithm(algorithm),
                      {.history = &loads, .topology = {.ranks = 4}, .physical = 20});
    ASSERT_EQ(placed.size(), 3u);
    for (int layer = 0; layer < 3; ++layer)
      EXPECT_TRUE(std::ranges::equal(MapOf(placed[layer]), plan.Layer(layer))) << algorithm;
  }
  EXPECT_THAT(ErrorOf([&] { Load(path_, 2, 16, 4); }),
              HasSubstr("counts of 3 layers of 16 experts, but the model has 2 of 16"));

  // A single step, as JSON.
  const auto text = Load(Write(R"({"logical_count": [[9, 1, 1, 1], [0, 0, 0, 0]]})"), 2, 4, 2);
  int replicas = 0;
  for (const int32_t expert : MapOf(text[0])) replicas += expert == 0;
  EXPECT_EQ(replicas, 2);
}

TEST_F(LoadPlacementsTest, RecordedLoadsPutHotExpertsOnTheFastRank) {
  const auto placed = LoadPlacements(
      {.location =
           Write(R"({"logical_count": [[1, 50, 2, 3, 60, 2, 1, 4], [0, 0, 0, 0, 0, 0, 0, 0]]})"),
       .num_layers = 2,
       .num_logical = 8,
       .topology = {.ranks = 2, .slots = {2, 6}, .costs = {{.row = 1}, {.row = 8}}}});
  EXPECT_THAT(MapOf(placed[0]), ElementsAre(1, 4, 0, 2, 3, 5, 6, 7));
  std::vector<int32_t> all = MapOf(placed[1]);
  std::ranges::sort(all);
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(LoadPlacementsTest, ListsMayNestToAnyDepth) {
  const size_t depth = 1'000'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THAT(ErrorOfFile(R"({"physical_to_logical_map": )" + deep + "}"),
              HasSubstr("layer 0: a list is not an expert id"));
  EXPECT_THAT(ErrorOfFile(R"({"physical_to_logical_map": [[0, 1, 2, 3, )" + deep + "]]}"),
              HasSubstr("layer 0: a list is not an expert id"));
}

TEST(CheckSamePlacementsTest, EachRankReportsThatFilesDiffer) {
  const MeshShape mesh{.tp = 3, .ep = 3};
  RunRankThreads(
      3, RankComm::BytesPerRank(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), mesh, rank);
        const std::vector<ExpertPlacement> same(2, ExpertPlacement::Trivial(4, 1));
        CheckSamePlacements(same, "trivial", *comm->tp);
        std::vector<ExpertPlacement> mine = same;
        if (rank == 1) mine[1] = ExpertPlacement(4, {0, 1, 2, 3, 1});
        EXPECT_THAT(ErrorOf([&] { CheckSamePlacements(mine, "FILE", *comm->tp); }),
                    HasSubstr("--init-expert-location FILE: rank 1 has another placement"));
      });
}

TEST_F(LoadPlacementsTest, RefusesACorruptFileWithItsReason) {
  SafetensorsWriter writer;
  writer.Add("logical_count", {2, 3, 4}, std::vector<int32_t>(24, 7));
  writer.Write(path_);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_THAT(ErrorOf([&] { Load(path_, 3, 4, 1); }),
              AllOf(HasSubstr("--init-expert-location " + path_), HasSubstr("truncated")));
  EXPECT_THAT(ErrorOfFile(R"({"logical_count": [[1, 2, 3, 4], [1, 2, 3]]})"),
              HasSubstr("lists of unequal length"));
  EXPECT_THAT(ErrorOfFile(R"({"logical_count": [[1, 2, 3, -4]]})"), HasSubstr("negative count -4"));
  EXPECT_THAT(ErrorOfFile(R"({"logical_count": [1, 2]})"), HasSubstr("is [2]; want counts"));
  EXPECT_THAT(ErrorOfFile(R"({"logical_count": [[]]})"), HasSubstr("is [1, 1, 0]; want counts"));
}

}  // namespace
}  // namespace switchyard
