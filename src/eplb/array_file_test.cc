#include "eplb/array_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/safetensors_writer.h"
#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class ArrayFileTest : public ::testing::Test {
 protected:
  ArrayFile Text(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return ArrayFile(path_);
  }

  const TemporaryDirectory temporary_;
  const std::string path_ = (temporary_.path() / "arrays").string();
};

TEST_F(ArrayFileTest, ReadsJsonAndTensors) {
  const ArrayFile text = Text(R"({"a": [[1, 2, 3], [4, -5, 2147483647]], "b": [[], []]})");
  EXPECT_EQ(text.Get("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(text.Get("a").values, (std::vector<int32_t>{1, 2, 3, 4, -5, 2147483647}));
  EXPECT_EQ(text.Get("b").shape, (std::vector<int64_t>{2, 0}));
  EXPECT_FALSE(text.Has("c"));

  SafetensorsWriter writer;
  writer.Add("a", {2, 2}, std::vector<int32_t>{1, -2, 3, 4});
  writer.Add("b", {2}, std::vector<int64_t>{5, -6});
  writer.Add("large", {1}, std::vector<int64_t>{int64_t{1} << 31});
  writer.Write(path_);
  const ArrayFile tensors(path_);
  EXPECT_EQ(tensors.Get("a").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(tensors.Get("a").values, (std::vector<int32_t>{1, -2, 3, 4}));
  EXPECT_EQ(tensors.Get("b").values, (std::vector<int32_t>{5, -6}));
  EXPECT_THAT(ErrorOf([&] { tensors.Get("large"); }),
              HasSubstr("large: 2147483648 is not a 32-bit integer"));
  EXPECT_THAT(ErrorOf([&] { tensors.Get("c"); }),
              HasSubstr(path_ + ": no array named c; the file has a, b, large"));
}

TEST_F(ArrayFileTest, ErrorsNameTheCause) {
  EXPECT_THAT(ErrorOf([] { ArrayFile("/no/such/file"); }, ErrorKind::kNotFound),
              HasSubstr("/no/such/file: no such file"));
  for (const char* neither : {"", "{", "1234567,", "no JSON at all"})
    EXPECT_THAT(ErrorOf([&] { Text(neither); }), HasSubstr("neither safetensors nor JSON"));
  EXPECT_THAT(ErrorOf([&] { Text("1234567").Get("a"); }),
              HasSubstr("no array named a; the file has no arrays"));
  EXPECT_THAT(ErrorOf([&] { Text(R"({"b": [1], "n": 2})").Get("a"); }),
              HasSubstr("no array named a; the file has b"));
  const struct {
    const char* array;
    const char* says;
  } cases[] = {
      {"7", "a: not a list"},
      {"[1, [2]]", "a: a list is not a 32-bit integer"},
      {"[1, {}]", "a: an object is not a 32-bit integer"},
      {"[[1], 2]", "unequal length or depth"},
      {"[[1, 2], [3]]", "unequal length or depth"},
      {"[1.5]", "1.5 is not a 32-bit integer"},
      {"[2147483648]", "2147483648 is not a 32-bit integer"},
      {"[18446744073709551615]", "18446744073709551615 is not a 32-bit integer"},
      {"[-2147483649]", "-2147483649 is not a 32-bit integer"},
      {"[\"1\"]", "is not a 32-bit integer"},
      {"[[[[[1]]]]]", "more than 4 deep"},
  };
  for (const auto& c : cases) {
    const ArrayFile file = Text(fmt::format(R"({{"a": {}}})", c.array));
    EXPECT_THAT(ErrorOf([&] { file.Get("a"); }), HasSubstr(c.says)) << c.array;
  }
}

TEST_F(ArrayFileTest, ListsMayNestToAnyDepth) {
  const size_t depth = 1'000'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THAT(ErrorOf([&] { Text(R"({"a": )" + deep + "}").Get("a"); }), HasSubstr("4 deep"));
  EXPECT_THAT(ErrorOf([&] { Text(R"({"a": [1, )" + deep + "]}").Get("a"); }),
              HasSubstr("a: a list is not a 32-bit integer"));
}

// Each file with one changed byte and each truncated file is either read or rejected.
TEST_F(ArrayFileTest, SurvivesMutations) {
  SafetensorsWriter writer;
  writer.Add("logical_count", {2, 3}, std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  writer.Write(path_);
  std::ifstream in(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto survive = [&](const std::string& bytes) {
    try {
      const LoadHistory loads = ReadLoads(Text(bytes));
      EXPECT_EQ(loads.counts.size(), size_t(loads.steps) * loads.layers * loads.experts);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_));
    }
  };
  for (size_t cut = 0; cut < whole.size(); ++cut) survive(whole.substr(0, cut));
  std::mt19937 random(1);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(random());
    survive(changed);
  }
}

}  // namespace
}  // namespace switchyard
