// The connections of stages while ranks wait for each other.
#include "engine/pipeline/stage_links.h"

#include <gmock/gmock.h>

#include <latch>
#include <string>

#include "comm/device/rank_threads.h"

namespace switchyard {
namespace {

constexpr StageLinkSizes kSizes{.stages = 3, .rows_bytes = 64, .batches = 1, .results_bytes = 64};
const std::string kRows(64, 'r'), kLarge(5000, 'v'), kSmall = "results";

std::string ReceiveRows(StageLinks& links) {
  std::string rows(kRows.size(), '-');
  links.rows().Receive(std::as_writable_bytes(std::span(rows)));
  return rows;
}

void RunStages(const MeshShape& mesh, const std::function<void(RankComm&, StageLinks&)>& body) {
  RunRankThreads(mesh.world(), RankComm::BytesPerRank(mesh) + StageLinks::BytesPerRank(kSizes),
                 [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                   const auto comm =
                       RankComm::Create(arena, mesh, rank, {.timeout = std::chrono::seconds(60)});
                   StageLinks links(*comm, kSizes);
                   body(*comm, links);
                 });
}

// The first stage waits for room to send rows. The second one reads them only after the last one
// has sent results that exceed the lane. So the first stage receives the results, but does not
// pass them on yet.
TEST(StageLinks, LargeResultsAreReceivedWhileRowsWait) {
  std::latch sent(1);
  RunStages({.pp = 3}, [&](RankComm& comm, StageLinks& links) {
    const auto rows = std::as_bytes(std::span(kRows));
    switch (comm.mesh.pp_rank()) {
      case 0:
        for (int i = 0; i < 3; ++i) links.rows().Send(rows);
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        links.PassOnResults(kLarge);
        break;
      case 1:
        sent.wait();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(ReceiveRows(links), kRows);
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        links.PassOnResults(kLarge);  // no later stage needs them
        break;
      default:
        links.SendResults(kLarge);
        sent.count_down();
    }
  });
}

// Two attention groups: the second rank of the first stage waits for the first one, which waits for
// room until both ranks of the last stage have sent results that exceed the lane.
TEST(StageLinks, LargeResultsAreReceivedWhileARankWaitsForItsStage) {
  std::latch sent(2);
  RunStages({.tp = 2, .dp = 2, .pp = 3}, [&](RankComm& comm, StageLinks& links) {
    const bool first = comm.mesh.tp_rank() == 0;
    switch (comm.mesh.pp_rank()) {
      case 0:
        for (int step = 0; step < 2; ++step) {
          if (first) {
            links.SendControl(std::string(size_t{1} << 20, 'c'));
            links.BeginBroadcast();
          } else {
            links.AwaitBroadcast();
          }
          EXPECT_EQ(comm.tp->Broadcast(kSmall, /*idle=*/true), kSmall);
        }
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        break;
      case 1:
        sent.wait();
        if (!first) break;
        for (int step = 0; step < 2; ++step)
          EXPECT_EQ(links.ReceiveControl(/*idle=*/true).size(), size_t{1} << 20);
        break;
      default:
        links.SendResults(kLarge);
        sent.count_down();
    }
  });
}

}  // namespace
}  // namespace switchyard
