#include "core/verify_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cctype>
#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Sums of "abc" (FIPS 180-2, appendix B) and of the empty message.
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class VerifyFilesTest : public ::testing::Test {
 protected:
  VerifyFilesTest() {
    Write("a.safetensors", "abc");
    Write("b.safetensors", "");
  }

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  std::vector<FileStamp> Weights() const {
    return {RegularFile(dir_ / "a.safetensors").stamp(),
            RegularFile(dir_ / "b.safetensors").stamp()};
  }
  bool Verify(const std::string& list, const VerifyOptions& options = {}) {
    Write("sums", list);
    return VerifyFiles(dir_, Weights(), dir_ / "sums", options);
  }
  std::string Message(const std::string& list) {
    return ErrorOf([&] { Verify(list); });
  }
  static std::string Line(const std::string& sum, const std::string& name) {
    return sum + "  " + name + "\n";
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(VerifyFilesTest, AcceptsTheFormatsOfSha256sum) {
  EXPECT_TRUE(Verify(Line(kAbc, "a.safetensors") + Line(kEmpty, "b.safetensors")));
  EXPECT_TRUE(Verify(Line(kAbc, "./a.safetensors") + kEmpty + " *b.safetensors"));
  EXPECT_TRUE(Verify(Line(kAbc, (dir_ / "a.safetensors").string()) + "# other lines\n\n" +
                     Line(kEmpty, "b.safetensors\r")));
  std::string upper = kAbc;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  EXPECT_TRUE(Verify(Line(upper, "a.safetensors") + Line(kEmpty, "b.safetensors")));
}

TEST_F(VerifyFilesTest, DecodesEscapedNames) {
  const std::string weights = Line(kAbc, "a.safetensors") + Line(kEmpty, "b.safetensors");
  Write("x\ny\\\r", "abc");
  EXPECT_TRUE(Verify(weights + "\\" + Line(kAbc, "x\\ny\\\\\\r")));
  EXPECT_THAT(Message(weights + "\\" + Line(kEmpty, "x\\ny\\\\\\r")),
              HasSubstr("its SHA-256 sum is"));
}

TEST_F(VerifyFilesTest, NamesTheFileWithAnotherSum) {
  EXPECT_THAT(Message(Line(kEmpty, "a.safetensors") + Line(kEmpty, "b.safetensors")),
              AllOf(HasSubstr("a.safetensors: its SHA-256 sum is"), HasSubstr(kAbc)));
}

TEST_F(VerifyFilesTest, NamesUnlistedFiles) {
  EXPECT_THAT(Message(Line(kAbc, "a.safetensors")),
              AllOf(HasSubstr("b.safetensors is not listed"), HasSubstr("sums")));
  EXPECT_THAT(Message(""), HasSubstr("a.safetensors is not listed"));
}

TEST_F(VerifyFilesTest, ComparesOtherListedFilesThatExist) {
  const std::string weights = Line(kAbc, "a.safetensors") + Line(kEmpty, "b.safetensors");
  EXPECT_TRUE(Verify(weights + Line(kAbc, "README.md")));
  Write("config.json", "abcd");
  EXPECT_THAT(Message(weights + Line(kAbc, "config.json")), HasSubstr("config.json: its SHA-256"));
  ASSERT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(Message(weights + Line(kAbc, "fifo")), HasSubstr("is a FIFO"));
}

TEST_F(VerifyFilesTest, NamesMalformedLines) {
  const std::string good = Line(kAbc, "a.safetensors");
  for (const std::string& line :
       {std::string("SHA256 (a.safetensors) = ") + kAbc, std::string(kAbc) + "\ta.safetensors",
        std::string(kAbc).substr(1) + "  a.safetensors", std::string(kAbc) + "  ",
        "g" + std::string(kAbc).substr(1) + "  a.safetensors"}) {
    EXPECT_THAT(Message(good + line), HasSubstr("line 2: want 64 hexadecimal digits")) << line;
  }
  EXPECT_THAT(Message(good + Line(kEmpty, "a.safetensors")), HasSubstr("two different sums"));
  ErrorOf([&] { VerifyFiles(dir_, Weights(), dir_ / "none"); }, ErrorKind::kNotFound);
}

TEST_F(VerifyFilesTest, ReportsProgressAndEndsWhenCancelled) {
  const std::string list = Line(kAbc, "a.safetensors") + Line(kEmpty, "b.safetensors");
  uint64_t done = 0, total = 0;
  VerifyOptions options{.progress =
                            [&](uint64_t read, uint64_t all) {
                              done = read;
                              total = all;
                            },
                        .cancelled = nullptr,
                        .threads = 3};
  EXPECT_TRUE(Verify(list, options));
  EXPECT_EQ(done, 3u);
  EXPECT_EQ(total, 3u);
  options.cancelled = [] { return true; };
  EXPECT_FALSE(Verify(list, options));
}

}  // namespace
}  // namespace switchyard
