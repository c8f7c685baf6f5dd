#include "chat/signals.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace switchyard::chat {
namespace {

using namespace std::chrono_literals;

// One key press, or a closed terminal, can send several signals.
TEST(SignalsTest, AllSignalsThatHaveArrivedAreDrained) {
  {
    Signals signals;
    EXPECT_FALSE(signals.Drain());
    raise(SIGWINCH);
    EXPECT_FALSE(signals.Drain());
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGWINCH}) raise(number);
    EXPECT_TRUE(signals.Drain());
    EXPECT_FALSE(signals.Drain());
    EXPECT_FALSE(signals.Wait(-1, 0, 0ms));
    raise(SIGTERM);
    EXPECT_THROW(signals.Wait(-1, 0, 0ms), Interrupted);
  }
  Signals::Restore();
}

}  // namespace
}  // namespace switchyard::chat
