#include "core/gguf_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class GgufFilesTest : public ::testing::Test {
 protected:
  // A file with the tensor `tensor`, as split `number` of `count` if `count` is not 0.
  void Write(const std::string& name, const std::string& tensor, uint16_t number, uint16_t count,
             int32_t tensors = 2) const {
    std::string out = "GGUF";
    const auto put = [&](auto value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    const auto text = [&](const std::string& s) {
      put(static_cast<uint64_t>(s.size()));
      out += s;
    };
    put(uint32_t{3});
    put(uint64_t{1});
    put(count == 0 ? uint64_t{0} : uint64_t{3});
    if (count != 0) {
      text("split.no");
      put(uint32_t{2});
      put(number);
      text("split.count");
      put(uint32_t{2});
      put(count);
      text("split.tensors.count");
      put(uint32_t{5});
      put(tensors);
    }
    text(tensor);
    put(uint32_t{1});
    put(uint64_t{2});
    put(uint32_t{kGgmlF32});
    put(uint64_t{0});
    out.resize((out.size() + 31) / 32 * 32);
    put(1.0f);
    put(static_cast<float>(number));
    std::ofstream(dir_ / name, std::ios::binary) << out;
  }
  void WriteSplits() const {
    Write("m-00001-of-00002.gguf", "a", 0, 2);
    Write("m-00002-of-00002.gguf", "b", 1, 2);
  }
  std::string OpenError(const std::string& name, ErrorKind kind = ErrorKind::kInvalid) const {
    return ErrorOf([&] { GgufFiles(dir_ / name); }, kind);
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(GgufFilesTest, FindsTheModelOfAPath) {
  EXPECT_EQ(FindGguf("missing.gguf"), fs::path("missing.gguf"));
  EXPECT_EQ(FindGguf("org/name"), std::nullopt);
  EXPECT_EQ(FindGguf(dir_), std::nullopt);
  WriteSplits();
  Write("mmproj-m.gguf", "a", 0, 0);
  EXPECT_EQ(FindGguf(dir_), dir_ / "m-00001-of-00002.gguf");
  Write("other.gguf", "a", 0, 0);
  EXPECT_THAT(ErrorOf([&] { FindGguf(dir_); }),
              HasSubstr("has several GGUF models: m-00001-of-00002.gguf, other.gguf"));
  std::ofstream(dir_ / "config.json") << "{}";
  EXPECT_EQ(FindGguf(dir_), std::nullopt);
}

TEST_F(GgufFilesTest, OpensAllSplitsFromAnyOfThem) {
  WriteSplits();
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    const GgufFiles files(dir_ / name);
    EXPECT_EQ(files.tensors().size(), 2u);
    EXPECT_EQ(reinterpret_cast<const float*>(files.Find("b")->data)[1], 1.0f);
    EXPECT_EQ(files.Find("c"), nullptr);
    EXPECT_EQ(files.Int("split.no"), 0);
    EXPECT_THAT(files.name(), HasSubstr("m-00001-of-00002.gguf"));
  }
}

TEST_F(GgufFilesTest, NamesASplitThatDoesNotFit) {
  Write("m-00001-of-00002.gguf", "a", 0, 2);
  EXPECT_THAT(OpenError("m-00001-of-00002.gguf", ErrorKind::kNotFound),
              HasSubstr("m-00002-of-00002.gguf: No such file"));
  Write("m-00002-of-00002.gguf", "b", 2, 3);
  EXPECT_THAT(
      OpenError("m-00001-of-00002.gguf"),
      HasSubstr("m-00002-of-00002.gguf: is split 3 of 3 by its metadata; want split 2 of 2"));
  Write("m-00002-of-00002.gguf", "a", 1, 2);
  EXPECT_THAT(OpenError("m-00001-of-00002.gguf"), HasSubstr("tensor \"a\" is in "));
  Write("m-00001-of-00002.gguf", "a", 0, 2, 5);
  Write("m-00002-of-00002.gguf", "b", 1, 2, 5);
  EXPECT_THAT(OpenError("m-00001-of-00002.gguf"),
              HasSubstr("its splits have 2 tensors; split.tensors.count is 5"));
  Write("renamed.gguf", "a", 0, 2);
  EXPECT_THAT(OpenError("renamed.gguf"),
              HasSubstr("is split 1 of 2 by its metadata; want split 1 of 1"));
}

TEST_F(GgufFilesTest, ChecksTheTypeOfAValue) {
  WriteSplits();
  const GgufFiles files(dir_ / "m-00001-of-00002.gguf");
  EXPECT_EQ(files.Number("split.count"), 2.0);
  EXPECT_EQ(files.String("absent"), nullptr);
  EXPECT_THAT(ErrorOf([&] { files.String("split.no"); }), HasSubstr("split.no is not a string"));
  EXPECT_THAT(ErrorOf([&] { files.Bool("split.no"); }), HasSubstr("split.no is not true or false"));
}

}  // namespace
}  // namespace switchyard
