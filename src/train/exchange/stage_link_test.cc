#include "train/exchange/stage_link.h"

#include <gmock/gmock.h>

#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;

// Message n of a direction: both sides can compute its length and content.
std::vector<float> Message(int n, int direction) {
  return std::vector<float>(static_cast<size_t>((n * 37 + direction * 11) % 50),
                            static_cast<float>(n * 2 + direction));
}

// Three stages in a row: buffers are reused, message lengths vary, some messages are empty, and
// senders are ahead of receivers by the number of buffers.
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

// Runs a body on two stages and returns the error of the run.
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

TEST(StageLink, TimeoutsNameTheStages) {
  std::vector<float> rows(4);
  EXPECT_THAT(Failure(ErrorKind::kTimeout,
                      [&](int rank, StageLink& link) {
                        if (rank == 1) link.Receive(rows);
                      }),
              HasSubstr("rows of the previous stage"));
  EXPECT_THAT(Failure(ErrorKind::kTimeout,
                      [&](int rank, StageLink& link) {
                        if (rank == 0) link.Send(rows);
                        if (rank == 0) link.Send(rows);
                      }),
              HasSubstr("receive buffer of the next stage"));
}

TEST(StageLink, RefusesWhatDoesNotFit) {
  std::vector<float> rows(5), two(2);
  EXPECT_THAT(Failure(ErrorKind::kResource,
                      [&](int rank, StageLink& link) {
                        if (rank == 0) link.Send(rows);
                      }),
              HasSubstr("5 floats for the pipeline stage of rank 1 exceed the link's limit of 4"));
  EXPECT_THAT(Failure(ErrorKind::kPeer,
                      [&](int rank, StageLink& link) {
                        if (rank == 1) link.SendGradient(two);
                        if (rank == 0) link.ReceiveGradient(std::span(rows).first(3));
                      }),
              HasSubstr("gradient of the next stage from rank 1 are 2 floats, want 3"));
}

}  // namespace
}  // namespace switchyard::train
