// Reads files of tests/data/eplb, saved by torch 2.15, and damaged copies of them.
#include "eplb/torch_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"
#include "eplb/array_file.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::string kRecording = SWITCHYARD_TEST_DATA "/eplb/recording.pt";
const std::string kMap = SWITCHYARD_TEST_DATA "/eplb/map.pt";

std::string BytesOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TorchFileTest : public ::testing::Test {
 protected:
  const std::string& Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  const TemporaryDirectory temporary_;
  const std::string path_ = (temporary_.path() / "tensors.pt").string();
};

TEST_F(TorchFileTest, ReadsTensorsBesideOtherValues) {
  const ArrayFile recording(kRecording);
  const IntArray counts = recording.Get("logical_count");
  EXPECT_THAT(counts.shape, ElementsAre(2, 3, 4));
  std::vector<int32_t> want(24);
  for (int i = 0; i < 24; ++i) want[i] = i;
  EXPECT_THAT(counts.values, ElementsAreArray(want));
  EXPECT_THAT(ErrorOf([&] { recording.Get("rank"); }),
              HasSubstr("no array named rank; the file has logical_count"));
}

TEST_F(TorchFileTest, TensorsMayBePartsOfOneStorage) {
  const ArrayFile file(kMap);
  EXPECT_THAT(file.Get("part").shape, ElementsAre(2, 6));
  EXPECT_THAT(file.Get("part").values, ElementsAre(3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0));
  EXPECT_THAT(ErrorOf([&] { file.Get("transposed"); }), HasSubstr("transposed: not contiguous"));
  EXPECT_THAT(ErrorOf([&] { file.Get("weights"); }), HasSubstr("weights: dtype is float32"));
}

TEST_F(TorchFileTest, TruncatedAndDamagedFilesAreRefused) {
  const std::string whole = BytesOf(kRecording);
  EXPECT_THAT(ErrorOf([&] { ArrayFile(Write(whole.substr(0, whole.size() / 2))); }),
              HasSubstr("without a directory; is it truncated?"));
  for (size_t size = 4; size < whole.size(); size += 7)
    EXPECT_NE(ErrorOf([&] { ArrayFile(Write(whole.substr(0, size))); }), "no error") << size;
  // With any byte changed, the file is either read or rejected. If it is read, all tensors lie
  // inside the file.
  for (size_t at = 4; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    std::set<std::string> scattered;
    try {
      for (const auto& [name, entry] : ReadTorchTensors(Write(damaged), &scattered)) {
        EXPECT_LE(entry.begin, entry.end) << at;
        EXPECT_LE(entry.end, whole.size()) << at;
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_)) << at;
    }
  }
}

TEST(PickleTest, OperationsThatNoTensorNeedsAreRefused) {
  const auto error = [](const std::string& bytes) {
    return ErrorOf([&] { Pickle(bytes, "f.pt"); });
  };
  EXPECT_THAT(error("\x80\x02i__main__\nrun\n."),
              HasSubstr("f.pt: the pickle has the unsupported operation"));
  for (const char* damaged : {"", "}", "K", "(", "t.", "R.", "N(u.", "h\1.",
                              "X\xff\xff\xff\x7f"
                              "a."})
    EXPECT_THAT(error(damaged), HasSubstr("f.pt: the pickle is damaged")) << damaged;
}

TEST(PickleTest, DeeplyNestedListsTakeNoStack) {
  const size_t depth = 200'000;
  std::string bytes;
  for (size_t i = 0; i < depth; ++i) bytes += ")";
  for (size_t i = 1; i < depth; ++i) bytes += "\x85";
  EXPECT_EQ(Pickle(bytes + ".", "f").root().items.size(), 1u);
}

TEST(PickleTest, NumbersOfAllWidths) {
  const std::string bytes(
      "](K\xffM\x01\x02J\xfe\xff\xff\xff\x8a\x02\x00\x80\x8a\x00\x88"
      "e.",
      21);
  const Pickle pickle(bytes, "f");
  std::vector<int64_t> numbers;
  for (const uint32_t item : pickle.root().items) numbers.push_back(pickle.at(item).number);
  EXPECT_THAT(numbers, ElementsAre(255, 513, -2, -32768, 0, 1));
}

}  // namespace
}  // namespace switchyard
