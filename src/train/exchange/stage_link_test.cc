#include "train/exchange/stage_link.h"

#include <gmock/gmock.h>

#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;

// Message n of a direction: its length and its content are known to both sides.
std::vector<float> Message(int n, int direction) {
  return std::vector<float>(static_cast<size_t>((n * 37 + direction * 11) % 50),
                            static_cast<float>(n * 2 + direction));
}

// Three stages in a row: places are used again and again, messages change their length, some are
// empty, and senders are ahead of receivers by as many as there are places.
TEST(StageLink, CarriesRowsForthAndGradientsBack) {
  constexpr int kMessages = 40;
  for (const bool tcp : {false, true}) {
    for (const int places : {1, 2, 3}) {
      const StageLinkOptions options{.floats = 50, .places = places};
      const RankBody body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
        SymmetricMemory memory(arena, rank, {.timeout = std::chrono::seconds(60)});
        const bool first = rank == 0, last = rank == 2;
        StageLink link(memory, first ? -1 : rank - 1, last ? -1 : rank + 1, options);
        for (int n = 0; n < kMessages + places; ++n) {
          if (n < kMessages) {
            std::vector<float> rows = Message(n, 0);
            if (!first) {
              std::ranges::fill(rows, -1.0f);
              link.Receive(rows);
              EXPECT_EQ(rows, Message(n, 0));
            }
            if (!last) link.Send(rows);
          }
          if (n < places) continue;
          std::vector<float> gradient = Message(n - places, 1);
          if (!last) {
            std::ranges::fill(gradient, -1.0f);
            link.ReceiveGradient(gradient);
            EXPECT_EQ(gradient, Message(n - places, 1));
          }
          if (!first) link.SendGradient(gradient);
        }
      };
      if (tcp) {
        RunTcpRankThreads(3, 1, StageLink::BytesPerRank(options), body);
      } else {
        RunRankThreads(3, StageLink::BytesPerRank(options), body);
      }
    }
  }
}

// What one of two stages does, and how it ends.
std::string Failure(ErrorKind kind, const std::function<void(int, StageLink&)>& body) {
  const StageLinkOptions options{.floats = 4, .places = 1};
  return ErrorOf(
      [&] {
        RunRankThreads(2, StageLink::BytesPerRank(options), [&](int rank, auto arena) {
          SymmetricMemory memory(arena, rank, {.timeout = std::chrono::milliseconds(50)});
          StageLink link(memory, rank - 1, rank == 0 ? 1 : -1, options);
          body(rank, link);
        });
      },
      kind);
}

TEST(StageLink, SaysWhoWaitsForWhom) {
  std::vector<float> rows(4);
  EXPECT_THAT(Failure(ErrorKind::kTimeout,
                      [&](int rank, StageLink& link) {
                        if (rank == 1) link.Receive(rows);
                      }),
              HasSubstr("rows of the stage before"));
  EXPECT_THAT(Failure(ErrorKind::kTimeout,
                      [&](int rank, StageLink& link) {
                        if (rank == 0) link.Send(rows);
                        if (rank == 0) link.Send(rows);
                      }),
              HasSubstr("room for rows at the next stage"));
}

TEST(StageLink, RefusesWhatDoesNotFit) {
  std::vector<float> rows(5), two(2);
  EXPECT_THAT(Failure(ErrorKind::kResource,
                      [&](int rank, StageLink& link) {
                        if (rank == 0) link.Send(rows);
                      }),
              HasSubstr("5 floats for the pipeline stage of rank 1, the link was planned for 4"));
  EXPECT_THAT(Failure(ErrorKind::kPeer,
                      [&](int rank, StageLink& link) {
                        if (rank == 1) link.SendGradient(two);
                        if (rank == 0) link.ReceiveGradient(std::span(rows).first(3));
                      }),
              HasSubstr("gradient of the next stage from rank 1 are 2 floats, want 3"));
}

}  // namespace
}  // namespace switchyard::train
