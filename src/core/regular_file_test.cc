#include "core/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RegularFileTest : public ::testing::Test {
 protected:
  fs::path Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(RegularFileTest, ReadsWholeFiles) {
  EXPECT_EQ(ReadRegularFile(Write("empty", ""), 0), "");
  EXPECT_EQ(ReadRegularFile(Write("abc", "abc"), 3), "abc");
  fs::create_symlink(dir_ / "abc", dir_ / "link");
  EXPECT_EQ(ReadRegularFile(dir_ / "link", 3), "abc");
  const std::string large(200'000, 'x');
  EXPECT_EQ(ReadRegularFile(Write("large", large), 200'000), large);
  EXPECT_FALSE(ReadRegularFile("/proc/self/status", 1 << 20).empty());  // reports size 0
}

TEST_F(RegularFileTest, RejectsFilesOverTheSizeLimit) {
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(Write("abc", "abc"), 2); }),
              AllOf(HasSubstr("abc"), HasSubstr("has 3 bytes, at most 2")));
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile("/proc/self/status", 10); }), HasSubstr("at most 10"));
}

// Without O_NONBLOCK, opening a FIFO without a writer blocks.
TEST_F(RegularFileTest, NamesTheTypeOfOtherFiles) {
  ASSERT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(dir_ / "fifo", 10); }), HasSubstr("fifo: is a FIFO"));
  fs::create_symlink(dir_ / "fifo", dir_ / "link");
  EXPECT_THAT(ErrorOf([&] { const RegularFile file(dir_ / "link"); }), HasSubstr("is a FIFO"));
  EXPECT_THAT(ErrorOf([&] { ReadRegularFileIfExists(dir_ / "fifo", 10); }), HasSubstr("is a FIFO"));
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(dir_, 10); }), HasSubstr("is a directory"));
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile("/dev/zero", 10); }), HasSubstr("is a device"));

  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (dir_ / "socket").string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(dir_ / "socket", 10); }), HasSubstr("is a socket"));
  close(listener);
}

TEST_F(RegularFileTest, NamesMissingFiles) {
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(dir_ / "none", 10); }, ErrorKind::kNotFound),
              HasSubstr("none: No such file"));
  EXPECT_EQ(ReadRegularFileIfExists(dir_ / "none", 10), std::nullopt);
  EXPECT_EQ(ReadRegularFileIfExists(dir_ / "none" / "deeper", 10), std::nullopt);
  EXPECT_EQ(ReadRegularFileIfExists(Write("abc", "abc"), 10), "abc");
}

TEST_F(RegularFileTest, DescribesHowAFileHasChanged) {
  const fs::path path = Write("weights", "0123456789");
  const FileStamp stamp = RegularFile(path).stamp();
  EXPECT_EQ(stamp.size, 10u);
  EXPECT_EQ(DescribeChange(stamp), "");

  fs::resize_file(path, 4);
  EXPECT_THAT(DescribeChange(stamp),
              AllOf(HasSubstr("weights"), HasSubstr("truncated from 10 to 4 bytes")));
  fs::resize_file(path, 20);
  EXPECT_THAT(DescribeChange(stamp), HasSubstr("grown from 10 to 20 bytes"));
  fs::resize_file(path, 10);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_THAT(DescribeChange(stamp), HasSubstr("overwritten"));
  fs::rename(Write("new", "0123456789"), path);
  EXPECT_THAT(DescribeChange(stamp), HasSubstr("replaced"));
  fs::remove(path);
  EXPECT_THAT(DescribeChange(stamp), HasSubstr("removed"));
}

}  // namespace
}  // namespace switchyard
