#include <gmock/gmock.h>

#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "core/log_queue.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

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

TEST(LogTest, ControlCharactersOfAMessageAreEscaped) {
  std::ostringstream lines;
  {
    const LogCapture capture(lines);
    LOG_INFO("GET {} -> {}", "/a\nb\r\x1b[31m\x7f", 404);
    LOG_INFO("tab\tand \xc3\xa9 stay");
  }
  EXPECT_THAT(lines.str(), HasSubstr("GET /a\\nb\\x0d\\x1b[31m\\x7f -> 404\n"));
  EXPECT_THAT(lines.str(), HasSubstr("tab\tand \xc3\xa9 stay\n"));
}

}  // namespace
}  // namespace switchyard
