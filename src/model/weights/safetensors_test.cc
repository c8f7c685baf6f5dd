#include "model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::WithLength;
using testing::WriteBytes;

std::string File(const std::string& header, size_t data_bytes = 16) {
  return WithLength(header) + std::string(data_bytes, 'x');
}

std::string OpenMessage(const std::filesystem::path& dir) {
  try {
    const Checkpoint checkpoint(dir);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Checkpoint, ReadsShardsByTheirIndex) {
  const Checkpoint c(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe");
  const StoredTensor* t = c.Find("model.embed_tokens.weight");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->shape, (std::vector<int64_t>{512, 64}));
  EXPECT_THAT(t->file, HasSubstr("model-00002-of-00003.safetensors"));
  EXPECT_EQ(c.Find("model.embed_tokens"), nullptr);
}

TEST(Checkpoint, NamesWhatIsMissingOrWrong) {
  TempDir dir;
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("model.safetensors"));
  EXPECT_THAT(OpenMessage(dir.path() / "nowhere"), HasSubstr("nowhere"));

  WriteBytes(dir.path() / "model.safetensors", "");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("truncated"));

  const auto index = dir.path() / "model.safetensors.index.json";
  WriteBytes(index, "{");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("not JSON"));
  WriteBytes(index, R"({"weight_map": 3})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("weight_map"));
  WriteBytes(index, R"({"weight_map": {"a": 3}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("weight_map[\"a\"]"));
  WriteBytes(index, R"({"weight_map": {"a": "absent.safetensors"}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("absent.safetensors"));
  for (const char* escape : {"../x", "/etc/passwd", "..", "", "a/b"}) {
    WriteBytes(index, nlohmann::json{{"weight_map", {{"a", escape}}}}.dump());
    EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("not a file of this directory"));
  }
  const std::string one = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  WriteBytes(dir.path() / "s1", File(one));
  WriteBytes(index, R"({"weight_map": {"a": "s1"}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("\"a\" in s1, which lacks it"));
  WriteBytes(dir.path() / "s2", File(one));
  WriteBytes(index, R"({"weight_map": {"b": "s1", "a": "s2"}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("\"a\" in s2, which lacks it"));
}

}  // namespace
}  // namespace switchyard
