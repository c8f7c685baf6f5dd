#include <gtest/gtest.h>

#include "core/error.h"
#include "core/log.h"
#include "core/log_queue.h"

namespace switchyard {
namespace {

TEST(LogLevelTest, TheLevelChangesWhileTheProcessRuns) {
  SetLogLevel("error");
  EXPECT_FALSE(Logs(LogLevel::kWarning));
  SetLogLevel("warning");
  EXPECT_TRUE(Logs(LogLevel::kWarning));
  EXPECT_FALSE(Logs(LogLevel::kInfo));
  EXPECT_THROW(SetLogLevel("loud"), Error);
  SetLogLevel("info");
  EXPECT_TRUE(Logs(LogLevel::kInfo));
}

}  // namespace
}  // namespace switchyard
