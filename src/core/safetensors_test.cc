#include "core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "core/error.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

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
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, 'x');
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
      {R"("a":[1])", "not a JSON object"},
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

TEST(SafetensorsHeader, SkipsMetadataAndUnknownMembers) {
  const TensorEntries entries = Parse(
      File(R"({"a":{"x":[[1],{"shape":[7]}],"dtype":"F32","shape":[2],"y":{"dtype":"I8"},)"
           R"("data_offsets":[0,8]},"__metadata__":{"dtype":"F16","a":{"b":[3,[]]},"c":1}})"));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries.at("a").dtype, DType::kF32);
  EXPECT_EQ(entries.at("a").shape, std::vector<int64_t>{2});
}

TEST(SafetensorsHeader, RefusesMembersThatComeTwice) {
  for (const char* member :
       {R"("dtype":"F32")", R"("dtype":"F3")", R"("shape":[2])", R"("data_offsets":[0,8])"}) {
    const std::string entry = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],)";
    EXPECT_THAT(MessageOf(File(entry + member + "}}")), HasSubstr("\"a\": ")) << member;
    EXPECT_THAT(MessageOf(File(entry + member + "}}")), HasSubstr("appears twice")) << member;
  }
  EXPECT_THAT(MessageOf(File(R"({"__metadata__":{},"__metadata__":{}})")), HasSubstr("twice"));
}

TEST(SafetensorsHeader, BoundsTensorsAndNesting) {
  const std::string file = File(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                R"("b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})");
  const std::span bytes(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  EXPECT_EQ(ParseSafetensorsHeader(bytes, file.size(), "f", 2).size(), 2u);
  EXPECT_THAT(ErrorOf([&] { ParseSafetensorsHeader(bytes, file.size(), "f", 1); }),
              HasSubstr("f: has more than 1 tensors"));
  EXPECT_THAT(MessageOf(File(R"({"__metadata__":)" + std::string(1'000'000, '['))),
              HasSubstr("nests deeper"));
  EXPECT_THAT(MessageOf(File(R"({"a":)" + std::string(1'000'000, '['))),
              HasSubstr("not a JSON object"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A DOM of this header would take at least 16 bytes for each of 3 million numbers.
TEST(SafetensorsHeaderDeathTest, MemoryIsThatOfTheResult) {
  std::string header = R"({"__metadata__":{"a":[0)";
  for (int i = 0; i < 3'000'000; ++i) header += ",0";
  const std::string file = File(header + "]}}");
  const auto parse = [&] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (16 << 20);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(3);
    std::exit(Parse(file).empty() ? 0 : 2);
  };
  EXPECT_EXIT(parse(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(SafetensorsHeader, RefusesLengthsOutsideTheFile) {
  EXPECT_THAT(MessageOf(""), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf("1234567"), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf(std::string(8, '\0')), HasSubstr("not JSON"));
  EXPECT_THAT(MessageOf(std::string("\x40\0\0\0\0\0\0\0{}", 10)), HasSubstr("truncated"));
  EXPECT_THAT(MessageOf(std::string(8, '\xff') + "{}"), HasSubstr("header length"));
  EXPECT_THAT(MessageOf(File("[]")), HasSubstr("not a JSON object"));
  EXPECT_THAT(MessageOf(File("{")), HasSubstr("not JSON"));
}

// Every one-byte change and every truncation of a valid header either parses to ranges inside the
// file or throws an Error.
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

}  // namespace
}  // namespace switchyard
