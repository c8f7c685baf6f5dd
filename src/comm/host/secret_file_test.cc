#include "comm/host/secret_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SecretFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes, int mode = 0600) {
    std::ofstream(path_, std::ios::binary) << bytes;
    chmod(path_.c_str(), mode);
    return path_;
  }
  const TemporaryDirectory temporary_;
  const std::string path_ = (temporary_.path() / "secret").string();
};

TEST_F(SecretFileTest, LineEndsAtTheEndDoNotCount) {
  for (const char* end : {"", "\n", "\r\n", "\n\n"}) {
    EXPECT_EQ(ReadSecretFile(Write(std::string("0123456789 abcdef") + end)), "0123456789 abcdef");
  }
  const std::string binary("\0\n\xff 0123456789abc", 16);
  EXPECT_EQ(ReadSecretFile(Write(binary)), binary);
}

TEST_F(SecretFileTest, UnusableFilesAreRefusedByName) {
  const auto error_of = [](const std::string& path, ErrorKind kind = ErrorKind::kInvalid) {
    return ErrorOf([&] { ReadSecretFile(path); }, kind);
  };
  EXPECT_THAT(error_of(path_, ErrorKind::kNotFound),
              AllOf(StartsWith("--dist-secret-file " + path_), HasSubstr("openssl rand")));
  EXPECT_THAT(error_of(Write("0123456789abcde\n\n\n\n")), HasSubstr("has 15 bytes"));
  EXPECT_THAT(error_of(Write("")), HasSubstr("has 0 bytes"));
  EXPECT_THAT(error_of(Write(std::string((64 << 10) + 1, 'x'))), HasSubstr("more than 65536"));
  EXPECT_THAT(error_of("/dev/zero"), HasSubstr("is not a regular file"));
  EXPECT_THAT(error_of(::testing::TempDir()), HasSubstr("is not a regular file"));
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(error_of(path_), HasSubstr("is not a regular file"));
}

TEST_F(SecretFileTest, AccessByEveryUserIsAWarning) {
  std::ostringstream log;
  {
    const LogCapture capture(log);
    ReadSecretFile(Write("0123456789abcdef", 0640));
    EXPECT_EQ(log.str(), "");
    ReadSecretFile(Write("0123456789abcdef", 0644));
  }
  EXPECT_THAT(log.str(), AllOf(HasSubstr(path_), HasSubstr("mode 0644"), HasSubstr("chmod 600")));
}

}  // namespace
}  // namespace switchyard
