#include "comm/host/kept_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/error.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

FileDescriptor FileWith(const std::string& text) {
  FileDescriptor file(memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(write(file.get(), text.data(), text.size()), std::ssize(text));
  return file;
}

std::string TextOf(int fd) {
  std::string text(100, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(fd, text.data(), text.size(), 0))));
  return text;
}

TEST(KeptDescriptorsTest, KeepsRecordAndDescriptors) {
  KeptDescriptors kept = KeptDescriptors::Create();
  EXPECT_TRUE(kept.valid());
  EXPECT_FALSE(KeptDescriptors().valid());
  EXPECT_FALSE(kept.Get());
  const std::string large(1 << 20, 'x');  // larger than a message of sockets
  for (const std::string& record : {std::string("first"), std::string(), large}) {
    std::vector<FileDescriptor> files;
    std::vector<int> fds;
    for (int i = 0; i < 20; ++i) {
      files.push_back(FileWith("file " + std::to_string(i)));
      fds.push_back(files.back().get());
    }
    kept.Put(record, fds);
    files.clear();
    for (int round = 0; round < 3; ++round) {  // they stay kept
      const auto found = kept.Get();
      ASSERT_TRUE(found);
      EXPECT_EQ(found->record, record);
      ASSERT_EQ(found->descriptors.size(), fds.size());
      for (size_t i = 0; i < fds.size(); ++i) {
        const int fd = found->descriptors[i].get();
        EXPECT_EQ(TextOf(fd), "file " + std::to_string(i));
        EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
      }
    }
  }
  kept.Clear();
  EXPECT_FALSE(kept.Get());
  kept.Put("record only", {});
  EXPECT_EQ(kept.Get()->record, "record only");
  EXPECT_TRUE(kept.Get()->descriptors.empty());
}

TEST(KeptDescriptorsTest, RefusesTooManyDescriptors) {
  KeptDescriptors kept = KeptDescriptors::Create();
  const FileDescriptor file = FileWith("text");
  kept.Put("most", std::vector<int>(KeptDescriptors::kMost, file.get()));
  EXPECT_EQ(std::ssize(kept.Get()->descriptors), KeptDescriptors::kMost);
  EXPECT_THAT(
      ErrorOf([&] { kept.Put("more", std::vector<int>(KeptDescriptors::kMost + 1, file.get())); },
              ErrorKind::kResource),
      HasSubstr("cannot keep 253 descriptors of a rank: want at most 252"));
  EXPECT_FALSE(kept.Get());
  EXPECT_THAT(ErrorOf([&] { KeptDescriptors::FromFds(file.get(), file.get()); }),
              HasSubstr("is not a socket"));
}

TEST(KeptDescriptorsTest, IsClearedWithoutFreeDescriptors) {
  KeptDescriptors kept = KeptDescriptors::Create();
  const FileDescriptor file = FileWith("text");
  kept.Put("record", {file.get()});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(kept.Get(), Error);
  EXPECT_NO_THROW(kept.Clear());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(kept.Get());
}

// The descriptors of a process that was killed.
TEST(KeptDescriptorsTest, OutlivesTheProcess) {
  KeptDescriptors kept = KeptDescriptors::Create();
  const pid_t child = fork();
  if (child == 0) {
    const FileDescriptor file = FileWith("from a process that has ended");
    kept.Put("record", {file.get()});
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto found = kept.Get();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->record, "record");
  EXPECT_EQ(TextOf(found->descriptors.at(0).get()), "from a process that has ended");
}

}  // namespace
}  // namespace switchyard
