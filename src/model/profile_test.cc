// The operations that a profile of a model has.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/test_layouts.h"
#include "profile/profiler.h"

namespace switchyard {
namespace {

using nlohmann::json;
using schedule::Kind;
using schedule::Operation;

const char* NameOf(const Operation& o) {
  return o.kind == Kind::kForward ? Name(o.phase) : Name(o.kind);
}

// Profiles one prefill of 24 rows. Returns the events of passes in each rank's profile.
std::vector<std::vector<json>> Profile(const std::string& fixture, bool two_batches,
                                       bool single_batch) {
  const auto dir = std::filesystem::temp_directory_path() / ("model_profile_test_" + fixture);
  const ModelConfig config = LoadModelConfig(Fixture(fixture));
  ModelOptions options{.dtype = DType::kF32, .max_tokens = 64};
  options.moe.a2a_backend = "deepep";
  options.moe.single_batch_overlap = single_batch;
  options.two_batch_overlap = two_batches;
  const MeshShape shape{.tp = 2, .ep = 2};
  std::vector<std::vector<json>> events(2);
  RunRankThreads(2, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   profile::Profiler profiler(rank, comm->mesh.Title());
                   ModelOptions own = options;
                   own.profiler = &profiler;
                   Model model(Fixture(fixture), config, own, *comm, pool);
                   const Group texts = {{.tokens = Ids(11, 3)}, {.tokens = Ids(13, 5)}};
                   Sequences sequences(texts);
                   KvStorage kv(config, comm->mesh, sequences.num_pages(), kPageSize, DType::kF32);
                   model.Forward(sequences.Batch(0), kv);  // not recorded
                   profiler.Start({.dir = dir.string(), .name = fixture});
                   profile::Step step(&profiler);
                   model.Forward(sequences.Batch(0), kv);
                   step.End(profile::Stage::kPrefill, 24);
                   std::ifstream in(profiler.Stop()->files.at(0));
                   const json trace = json::parse(in);
                   for (const json& event : trace["traceEvents"])
                     if (event["ph"] == "X" && event["cat"] == "operation")
                       events[rank].push_back(event);
                 });
  std::filesystem::remove_all(dir);
  return events;
}

class ModelProfileTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelProfileTest, HasTheOperationsOfTheSchedule) {
  const ModelConfig config = LoadModelConfig(Fixture(GetParam()));
  for (const auto& [two_batches, single_batch] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    const MoeOptions moe{.single_batch_overlap = single_batch};
    std::vector<Operation> want = schedule::Plan(ServeShapeOf(config, moe, two_batches));
    std::erase_if(want, [](const Operation& o) { return o.kind == Kind::kSample; });
    for (const std::vector<json>& events : Profile(GetParam(), two_batches, single_batch)) {
      ASSERT_EQ(events.size(), want.size() + 1);
      int64_t rows_of_embeddings = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const json& args = events[i]["args"];
        EXPECT_EQ(events[i]["name"], NameOf(want[i])) << i;
        EXPECT_EQ(args["micro_batch"], want[i].micro_batch) << i;
        EXPECT_EQ(args.value("layer", -1), want[i].layer) << i;
        if (want[i].kind == Kind::kEmbed) rows_of_embeddings += args["rows"].get<int64_t>();
      }
      EXPECT_EQ(rows_of_embeddings, 24);
      EXPECT_EQ(events.back()["name"], "head");
      EXPECT_EQ(events.back()["args"]["rows"], 24);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelProfileTest, ::testing::Values("qwen3_moe", "deepseek_v3"));

}  // namespace
}  // namespace switchyard
