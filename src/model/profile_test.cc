// The operations that a profile of a model has.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/test_profile.h"

namespace switchyard {
namespace {

using nlohmann::json;
using schedule::Kind;
using schedule::Operation;

class ModelProfileTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelProfileTest, HasTheOperationsOfTheSchedule) {
  const ModelConfig config = LoadModelConfig(Fixture(GetParam()));
  for (const auto& [two_batches, single_batch] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    const MoeOptions moe{.single_batch_overlap = single_batch};
    std::vector<Operation> want = schedule::Plan(ServeShapeOf(config, moe, two_batches));
    std::erase_if(want, [](const Operation& o) { return o.kind == Kind::kSample; });
    for (const std::vector<json>& events : Profile(GetParam(), false, two_batches, single_batch)) {
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
