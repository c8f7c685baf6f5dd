#include "model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

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

// Without O_NONBLOCK, opening a FIFO without a writer blocks.
TEST(Checkpoint, NamesFilesThatAreNotRegular) {
  TempDir dir;
  const auto weights = dir.path() / "model.safetensors";
  const auto index = dir.path() / "model.safetensors.index.json";
  ASSERT_EQ(mkfifo(weights.c_str(), 0600), 0);
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("model.safetensors: is a FIFO"));
  std::filesystem::remove(weights);
  std::filesystem::create_symlink("/dev/zero", weights);
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("model.safetensors: is a device"));

  ASSERT_EQ(mkfifo(index.c_str(), 0600), 0);
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("index.json: is a FIFO"));
  WriteBytes(index, R"({"weight_map": {"a": "shard"}})");
  std::filesystem::create_directory(dir.path() / "shard");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("shard: is a directory"));
}

TEST(Checkpoint, ReadsOnlyTheWeightMapOfAnIndex) {
  TempDir dir;
  const auto index = dir.path() / "model.safetensors.index.json";
  WriteBytes(dir.path() / "s1", File(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"));
  WriteBytes(
      index,
      R"({"metadata": {"weight_map": {"x": "y"}, "z": [1, {}]}, "weight_map": {"b": "s1"}})");
  EXPECT_EQ(Checkpoint(dir.path()).tensors().size(), 1u);
  WriteBytes(index, R"({"weight_map": {"b": "s1"}, "weight_map": {}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("weight_map appears twice"));
  WriteBytes(index, R"({"weight_map": {"b": {"s1": 1}}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("weight_map[\"b\"] is not a file name"));
  for (const char* none : {"[]", "{}", "1", R"("weight_map")", R"({"weight_map": {}})"}) {
    WriteBytes(index, none);
    EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("weight_map is missing")) << none;
  }
  WriteBytes(index, R"({"metadata": )" + std::string(1'000'000, '['));
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("index.json: nests deeper"));
}

TEST(Checkpoint, ListsFilesWithTheirSizes) {
  const std::filesystem::path fixture = SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe";
  const std::vector<FileStamp> files = WeightFiles(fixture);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[1].path, fixture / "model-00002-of-00003.safetensors");
  EXPECT_EQ(files[1].size, std::filesystem::file_size(files[1].path));

  TempDir dir;
  WriteBytes(dir.path() / "model.safetensors", "abc");
  ASSERT_EQ(WeightFiles(dir.path()).size(), 1u);
  EXPECT_EQ(WeightFiles(dir.path())[0].size, 3u);
}

}  // namespace
}  // namespace switchyard
