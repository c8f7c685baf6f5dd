#include <gtest/gtest.h>
#include <signal.h>

#include "comm/host/rank_processes.h"

namespace switchyard {
namespace {

TEST(RankExitTest, AKillComesFromOutside) {
  for (const int fault : {0, SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
    EXPECT_TRUE((RankExit{.signal = fault}).ByItself()) << fault;
  for (const int other : {SIGKILL, SIGUSR1, SIGTERM})
    EXPECT_FALSE((RankExit{.signal = other}).ByItself()) << other;
}

TEST(RankExitTest, DescribesCodesAndSignals) {
  EXPECT_EQ((RankExit{.rank = 2, .code = 3, .pid = 4711}).Describe(),
            "rank 2 (pid 4711) ended with exit code 3");
  EXPECT_EQ((RankExit{.rank = 1, .signal = SIGSEGV, .pid = 4711}).Describe(),
            "rank 1 (pid 4711) was killed by signal 11 (SIGSEGV)");
}

}  // namespace
}  // namespace switchyard
