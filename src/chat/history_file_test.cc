#include <gtest/gtest.h>
#include <sys/stat.h>

#include "chat/line_reader.h"
#include "core/temporary_directory.h"

namespace switchyard::chat {
namespace {

class HistoryFileTest : public testing::Test {
 protected:
  const TemporaryDirectory temporary_;
  const std::filesystem::path path_ = temporary_.path() / "a/b/history";
};

TEST_F(HistoryFileTest, TextsOfSeveralLinesAreKept) {
  const HistoryFile file(path_);
  EXPECT_TRUE(file.Load().empty());
  const std::vector<std::string> texts = {"one", "two\nlines", "back\\slash \\n", ""};
  for (const std::string& text : texts) file.Append(text);
  EXPECT_EQ(HistoryFile(path_).Load(), texts);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST_F(HistoryFileTest, OldTextsAreRemoved) {
  const HistoryFile file(path_);
  for (size_t i = 0; i < 2 * HistoryFile::kMost + 1; ++i) file.Append(std::to_string(i));
  const auto texts = file.Load();
  EXPECT_EQ(texts.size(), HistoryFile::kMost);
  EXPECT_EQ(texts.back(), std::to_string(2 * HistoryFile::kMost));
  EXPECT_EQ(file.Load(), texts);
  EXPECT_EQ(std::filesystem::file_size(path_), 5 * HistoryFile::kMost);  // "1001\n" and so on
}

TEST_F(HistoryFileTest, AFolderThatCannotBeWrittenIsNoError) {
  const HistoryFile file("/proc/none/history");
  file.Append("one");
  EXPECT_TRUE(file.Load().empty());
  EXPECT_TRUE(HistoryFile("").Load().empty());
}

}  // namespace
}  // namespace switchyard::chat
