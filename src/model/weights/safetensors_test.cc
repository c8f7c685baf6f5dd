#include "model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::WithLength;
using testing::WriteBytes;

TensorEntries Parse(const std::string& bytes) {
  return ParseSafetensorsHeader({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                bytes.size(), "a.safetensors");
}
std::string MessageOf(const std::string& bytes) {
  try {
    Parse(bytes);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
std::string File(const std::string& header, size_t data_bytes = 16) {
  return WithLength(header) + std::string(data_bytes, 'x');
}

TEST(SafetensorsHeader, GivesRangesOfTheFile) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("z":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]}})";
  const TensorEntries entries = Parse(File(header));
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries.at("a").begin, 8 + header.size());
  EXPECT_EQ(entries.at("b").end, 8 + header.size() + 12);
  EXPECT_EQ(entries.at("b").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(entries.at("z").begin, entries.at("z").end);
}

TEST(SafetensorsHeader, RefusesWhatContradictsTheFile) {
  const struct {
    const char* entries;
    const char* says;
  } cases[] = {
      {R"("a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]})", "truncated"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "does not fill"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "ascending"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "data_offsets"},
      {R"("a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape"},
      {R"("a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]})", "shape"},
      {R"("a":{"dtype":"F32","shape":[2]})", "data_offsets"},
      {R"("a":{"dtype":"F32","data_offsets":[0,8]})", "shape"},
      {R"("a":{"shape":[2],"data_offsets":[0,8]})", "dtype"},
      {R"("a":{"dtype":"F3","shape":[2],"data_offsets":[0,8]})", "unknown dtype"},
      {R"("a":[1])", "no JSON object"},
      {R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})",
       "does not fill"},
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})",
       "overlap"},
      {R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
       "twice"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.entries);
    const std::string message = MessageOf(File("{" + std::string(c.entries) + "}"));
    EXPECT_THAT(message, HasSubstr(c.says));
    EXPECT_THAT(message, HasSubstr("a.safetensors"));
    EXPECT_THAT(message, HasSubstr("\"a\""));
  }
}

TEST(SafetensorsHeader, RefusesLengthsOutsideTheFile) {
  EXPECT_THAT(MessageOf(""), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf("1234567"), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf(std::string(8, '\0')), HasSubstr("not JSON"));
  EXPECT_THAT(MessageOf(std::string("\x40\0\0\0\0\0\0\0{}", 10)), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf(std::string(8, '\xff') + "{}"), HasSubstr("header length"));
  EXPECT_THAT(MessageOf(File("[]")), HasSubstr("no JSON object"));
  EXPECT_THAT(MessageOf(File("{")), HasSubstr("not JSON"));
}

// Every one-byte change and every cut of a real header either parses to ranges inside the file or
// is refused.
TEST(SafetensorsHeader, SurvivesMutations) {
  const std::string whole = File(R"({"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},)"
                                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  const auto survive = [](const std::string& bytes) {
    try {
      for (const auto& [name, e] : Parse(bytes)) ASSERT_LE(e.end, bytes.size());
    } catch (const Error&) {
    }
  };
  for (size_t cut = 0; cut < whole.size(); ++cut) survive(whole.substr(0, cut));
  std::mt19937 random(1);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int n = 0; n < 16; ++n) {
      std::string changed = whole;
      changed[i] = static_cast<char>(random());
      survive(changed);
    }
  }
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
    EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("no file of this directory"));
  }
  const std::string one = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  WriteBytes(dir.path() / "s1", File(one));
  WriteBytes(index, R"({"weight_map": {"a": "s1"}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("\"a\" in s1, which lacks it"));
  WriteBytes(dir.path() / "s2", File(one));
  WriteBytes(index, R"({"weight_map": {"b": "s1", "a": "s2"}})");
  EXPECT_THAT(OpenMessage(dir.path()), HasSubstr("\"b\" is in"));
}

}  // namespace
}  // namespace switchyard
