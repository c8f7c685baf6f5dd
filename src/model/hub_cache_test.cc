#include "model/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HubCacheTest : public ::testing::Test {
 protected:
  HubCacheTest() {
    fs::create_directories(model_ / "snapshots" / "abc");
    fs::create_directories(model_ / "snapshots" / "def");
    fs::create_directories(model_ / "refs" / "pr");
    std::ofstream(model_ / "refs" / "main") << "abc\n";
    std::ofstream(model_ / "refs" / "pr" / "1") << "def";
  }
  std::string ErrorOf(const std::string& id, const std::string& revision = "main") const {
    try {
      ResolveCheckpoint(id, revision, root_);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  const TemporaryDirectory temporary_;
  const fs::path& root_ = temporary_.path();
  const fs::path model_ = root_ / "models--org--name";
};

TEST_F(HubCacheTest, FindsTheSnapshotOfARevision) {
  EXPECT_EQ(ResolveCheckpoint("org/name", "main", root_), model_ / "snapshots" / "abc");
  EXPECT_EQ(ResolveCheckpoint("org/name", "pr/1", root_), model_ / "snapshots" / "def");
  EXPECT_EQ(ResolveCheckpoint("org/name", "def", root_), model_ / "snapshots" / "def");
}

TEST_F(HubCacheTest, PathsAreUnchanged) {
  for (const std::string path : {"/no/such/dir", "./org/name", "a/b/c", "../x", ""})
    EXPECT_EQ(ResolveCheckpoint(path, "main", root_), path);
  EXPECT_EQ(ResolveCheckpoint(root_, "main", root_), root_);
}

TEST_F(HubCacheTest, ErrorsNameWhatIsMissing) {
  EXPECT_THAT(ErrorOf("org/other"),
              AllOf(HasSubstr("hf download org/other"), HasSubstr(root_.string())));
  EXPECT_THAT(ErrorOf("org/name", "v2"), AllOf(HasSubstr("v2"), HasSubstr("--revision")));
  EXPECT_THAT(ErrorOf("org/name", "../../x"), HasSubstr("--revision"));
}

TEST_F(HubCacheTest, EnvironmentVariablesSetTheDirectory) {
  ASSERT_EQ(setenv("HF_HOME", "/hf", 1), 0);
  EXPECT_EQ(HubCacheDirectory(), "/hf/hub");
  ASSERT_EQ(setenv("HF_HUB_CACHE", "/cache", 1), 0);
  EXPECT_EQ(HubCacheDirectory(), "/cache");
  ASSERT_EQ(unsetenv("HF_HUB_CACHE"), 0);
  ASSERT_EQ(unsetenv("HF_HOME"), 0);
}

}  // namespace
}  // namespace switchyard
