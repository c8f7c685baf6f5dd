#include "engine/speculative/token_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/format.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenMapTest : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& name, const std::string& bytes) {
    std::filesystem::path path = dir_.path() / name;
    testing::WriteBytes(path, bytes);
    return path;
  }
  std::filesystem::path WriteTensor(const testing::RawTensors& tensors) {
    std::filesystem::path path = dir_.path() / "map.safetensors";
    testing::WriteSafetensors(path, tensors);
    return path;
  }
  template <typename T>
  static std::string Bytes(std::initializer_list<T> values) {
    return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(T)};
  }
  // The message for a file of a model with 100 tokens.
  static std::string ErrorOf(const std::filesystem::path& path) {
    try {
      ReadTokenMap(path, 100);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TempDir dir_;
};

TEST_F(TokenMapTest, ReadsIdsInAscendingOrder) {
  EXPECT_THAT(ReadTokenMap(Write("a.json", "[7, 0,99 ,3]\n"), 100), ElementsAre(0, 3, 7, 99));
  EXPECT_THAT(ReadTokenMap(Write("a", " \n[7,0]"), 100), ElementsAre(0, 7));
  EXPECT_THAT(ReadTokenMap(Write("a.txt", "7\n0\r\n99 3"), 100), ElementsAre(0, 3, 7, 99));
  EXPECT_THAT(ReadTokenMap(Write("b", "5"), 6), ElementsAre(5));
  EXPECT_THAT(ReadTokenMap(WriteTensor({{"any", {"I64", {3}, Bytes<int64_t>({9, 0, 4})}}}), 10),
              ElementsAre(0, 4, 9));
  EXPECT_THAT(ReadTokenMap(WriteTensor({{"any", {"I32", {2}, Bytes<int32_t>({9, 0})}}}), 10),
              ElementsAre(0, 9));
}

TEST_F(TokenMapTest, ReadsWhatItWrites) {
  const std::vector<int32_t> tokens = {17, 3, 250, 0};
  for (const char* name : {"map.json", "map.txt", "map"}) {
    const std::filesystem::path path = dir_.path() / name;
    WriteTokenMap(path, tokens);
    EXPECT_THAT(ReadTokenMap(path, 251), ElementsAre(0, 3, 17, 250)) << name;
  }
  EXPECT_EQ(testing::ReadBytes(dir_.path() / "map.json"), "[17, 3, 250, 0]\n");
  EXPECT_EQ(testing::ReadBytes(dir_.path() / "map.txt"), "17\n3\n250\n0\n");
  EXPECT_THROW(WriteTokenMap(dir_.path() / "map.pt", tokens), Error);
  EXPECT_THROW(WriteTokenMap(dir_.path() / "map.safetensors", tokens), Error);
}

TEST_F(TokenMapTest, UnfitFilesAreRefusedByName) {
  const auto expect = [&](const std::filesystem::path& path, const std::string& words) {
    EXPECT_THAT(ErrorOf(path), AllOf(HasSubstr("--speculative-token-map"), HasSubstr(path.string()),
                                     HasSubstr(words)));
  };
  expect(dir_.path() / "absent.json", "");
  expect(dir_.path(), "");
  expect(Write("a.json", "[1, 100]"), "entry 1 is 100; want tokens of the model, 0 to 99");
  expect(Write("a.json", "[-1]"), "entry 0 is -1");
  expect(Write("a.json", "[18446744073709551615]"), "entry 0 is -1");
  expect(Write("a.json", "[3, 4, 3]"), "token 3 occurs more than once");
  expect(Write("a.json", "[]"), "has no token ids");
  expect(Write("a.txt", " \n"), "has no token ids");
  expect(Write("a.txt", ""), "has no token ids");
  expect(Write("a.json", R"({"tokens": [1]})"), "want a list of token ids");
  expect(Write("a.json", R"([1, "2"])"), "element 1 is \"2\"; want a token id");
  expect(Write("a.json", "[1.5]"), "element 0 is 1.5");
  expect(Write("a.json", "[[1]]"), "element 0 is [1]");
  expect(Write("a.json", "[1"), "");
  expect(Write("a.txt", "1 2 x"), "entry 2 is not a token id");
  expect(Write("a.txt", "99999999999999999999"), "entry 0 is not a token id");
  expect(Write("a.pt", "anything"), "PyTorch files are not read");
  expect(Write("a.json", "PK\x03\x04 of a renamed file"), "torch.load");
  expect(Write("a.safetensors", "short"), "");
  expect(WriteTensor({{"a", {"F32", {1}, Bytes<float>({1})}}}), "want int64 or int32 [tokens]");
  expect(WriteTensor({{"a", {"I64", {1, 1}, Bytes<int64_t>({1})}}}), "[1, 1]; want int64");
  expect(WriteTensor(
             {{"a", {"I64", {1}, Bytes<int64_t>({1})}}, {"b", {"I64", {1}, Bytes<int64_t>({1})}}}),
         "has 2 tensors; want one");
}

TEST(TokenMapHashTest, DiffersIfATokenDiffers) {
  EXPECT_EQ(HashOfTokens(std::vector<int32_t>{1, 2}), HashOfTokens(std::vector<int32_t>{1, 2}));
  EXPECT_NE(HashOfTokens(std::vector<int32_t>{1, 2}), HashOfTokens(std::vector<int32_t>{1, 3}));
  EXPECT_NE(HashOfTokens(std::vector<int32_t>{1, 2}), HashOfTokens(std::vector<int32_t>{1}));
}

}  // namespace
}  // namespace switchyard
