#include "comm/device/progress_clock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <thread>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::MatchesRegex;

constexpr int kRanks = 3;

// Runs ranks in a row, each of which may wait for all others.
void RunRow(
    milliseconds timeout, bool tcp,
    const std::function<void(int rank, SymmetricMemory&, ProgressClock&, size_t flag)>& run) {
  const RankBody body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = timeout});
    std::vector<int> peers;
    for (int r = 0; r < kRanks; ++r)
      if (r != rank) peers.push_back(r);
    ProgressClock clock(memory, {.peers = peers, .describe = [](int r) {
                                   return fmt::format("rank {} (stage {})", r, r);
                                 }});
    run(rank, memory, clock, memory.Allocate(64));
  };
  const size_t bytes = ProgressClock::BytesPerRank() + 128;
  if (tcp) {
    RunTcpRankThreads(kRanks, 1, bytes, body);
  } else {
    RunRankThreads(kRanks, bytes, body);
  }
}

// The first rank computes for longer than the timeout. The last one waits for the second one, which
// waits for the first one.
TEST(ProgressClock, WaitsForRanksThatCompute) {
  const milliseconds timeout(600);
  for (const bool tcp : {false, true}) {
    RunRow(timeout, tcp, [&](int rank, SymmetricMemory& memory, ProgressClock& clock, size_t flag) {
      if (rank == 0) {
        const auto end = steady_clock::now() + timeout * 3 / 2;
        while (steady_clock::now() < end) {
          clock.Advance();
          std::this_thread::sleep_for(milliseconds(5));
        }
      } else {
        clock.Wait(flag, 1, rank - 1, "row");
      }
      if (rank + 1 < kRanks) memory.Raise(rank + 1, flag, 1);
    });
  }
}

// Each rank has made progress before, and waits for another one.
TEST(ProgressClock, ACircleOfWaitsEnds) {
  for (const bool tcp : {false, true}) {
    const auto run = [](int rank, SymmetricMemory&, ProgressClock& clock, size_t flag) {
      for (int i = 0; i < 3 * rank; ++i) {
        clock.Advance();
        std::this_thread::sleep_for(milliseconds(30));
      }
      clock.Wait(flag, 1, (rank + 1) % kRanks, "hidden rows");
    };
    EXPECT_THAT(ErrorOf([&] { RunRow(milliseconds(200), tcp, run); }, ErrorKind::kTimeout),
                MatchesRegex("rank [012] \\(stage [012]\\) waited 0.2 s for rank [012] \\(stage "
                             "[012]\\) in hidden rows, and the awaited rank made no progress"));
  }
}

// A rank that waits calls its action, which may receive what the others send meanwhile.
TEST(ProgressClock, AnActionRunsDuringTheWait) {
  RunRow(milliseconds(20'000), /*tcp=*/false,
         [](int rank, SymmetricMemory& memory, ProgressClock& clock, size_t flag) {
           if (rank == 0) {
             int calls = 0;
             clock.Wait(flag, 1, 1, "answer", [&] {
               if (++calls == 2) memory.Raise(1, flag, 1);
             });
             EXPECT_GE(calls, 2);
           } else if (rank == 1) {
             clock.Wait(flag, 1, 0, "question");
             memory.Raise(0, flag, 1);
           }
         });
}

}  // namespace
}  // namespace switchyard
