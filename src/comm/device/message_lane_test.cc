#include "comm/device/message_lane.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

std::string Text(int n) { return std::string(static_cast<size_t>(n * 37 % 90), 'a' + n % 26); }

std::string Name(int rank) { return fmt::format("rank {}", rank); }

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Three ranks in a row: places are reused, messages take several parts or are empty, and senders
// are ahead of receivers.
TEST(MessageLane, CarriesMessagesInOrder) {
  constexpr int kMessages = 60;
  for (const bool tcp : {false, true}) {
    for (const int places : {1, 2, 3}) {
      const MessageLaneOptions options{.part_bytes = 16, .places = places};
      const RankBody body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
        SymmetricMemory memory(arena, rank, {.timeout = std::chrono::seconds(60)});
        MessageLane lane(memory, rank - 1, rank == 2 ? -1 : rank + 1, options, "texts");
        for (int n = 0; n < kMessages; ++n) {
          std::string text = Text(n);
          if (rank == 1) {
            EXPECT_EQ(lane.Receive(), text);
          }
          if (rank == 2) {
            std::string same_length(text.size(), '-');
            lane.Receive(std::as_writable_bytes(std::span(same_length)));
            EXPECT_EQ(same_length, text);
          }
          if (rank != 2) lane.Send(BytesOf(text));
        }
      };
      if (tcp) {
        RunTcpRankThreads(3, 1, MessageLane::BytesPerRank(options), body);
      } else {
        RunRankThreads(3, MessageLane::BytesPerRank(options), body);
      }
    }
  }
}

// Two ranks send long messages to each other at the same time. Each receives while it waits for
// room.
TEST(MessageLane, ASenderMayReceiveWhileItWaitsForRoom) {
  const MessageLaneOptions options{.part_bytes = 16, .places = 2};
  const std::string text(1000, 'x');
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::seconds(60)});
    ProgressClock clock(memory, {.peers = {1 - rank}, .describe = Name});
    MessageLane there(memory, rank == 1 ? 0 : -1, rank == 0 ? 1 : -1, options, "there");
    MessageLane back(memory, rank == 0 ? 1 : -1, rank == 1 ? 0 : -1, options, "back");
    MessageLane &to = rank == 0 ? there : back, &from = rank == 0 ? back : there;
    to.UseClock(clock);
    std::string received;
    if (rank == 0)
      to.WhileFull([&] {
        if (received.empty() && from.Arrived()) received = from.Receive();
      });
    to.Send(BytesOf(text));
    if (received.empty()) received = from.Receive();
    EXPECT_EQ(received, text);
  };
  RunRankThreads(2, 2 * MessageLane::BytesPerRank(options) + ProgressClock::BytesPerRank(), body);
}

TEST(MessageLane, AnotherLengthIsAnError) {
  const MessageLaneOptions options{.part_bytes = 16};
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::seconds(60)});
    MessageLane lane(memory, rank - 1, rank == 0 ? 1 : -1, options, "texts");
    if (rank == 0) return lane.Send(BytesOf("abcd"));
    std::string longer(5, '-');
    lane.Receive(std::as_writable_bytes(std::span(longer)));
  };
  EXPECT_THAT(ErrorOf([&] { RunRankThreads(2, MessageLane::BytesPerRank(options), body); },
                      ErrorKind::kPeer),
              HasSubstr("rank 1: pipeline: texts from rank 0 have 4 bytes, want 5"));
}

TEST(MessageLane, AnotherTagIsAnError) {
  const MessageLaneOptions options{.part_bytes = 2};
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::seconds(60)});
    MessageLane lane(memory, rank - 1, rank == 0 ? 1 : -1, options, "texts");
    lane.SetTag(7);
    std::string text = "abcd";
    if (rank == 0) {
      lane.Send(BytesOf(text));
    } else {
      lane.Receive(std::as_writable_bytes(std::span(text)));
    }
    lane.SetTag(rank == 0 ? 8 : 9);
    if (rank == 0) return lane.Send(BytesOf(text));
    lane.Receive(std::as_writable_bytes(std::span(text)));
  };
  EXPECT_THAT(ErrorOf([&] { RunRankThreads(2, MessageLane::BytesPerRank(options), body); },
                      ErrorKind::kPeer),
              HasSubstr("rank 1: pipeline: texts from rank 0 belong to another batch (8, want 9)"));
}

TEST(MessageLane, AnIdleWaitHasNoDeadline) {
  const MessageLaneOptions options{.part_bytes = 16};
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::milliseconds(1)});
    MessageLane lane(memory, rank - 1, rank == 0 ? 1 : -1, options, "texts");
    std::string text = "abcd";
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      lane.Send(BytesOf(text));
    } else {
      EXPECT_EQ(lane.Receive(/*idle=*/true), text);
    }
  };
  RunRankThreads(2, MessageLane::BytesPerRank(options), body);
}

TEST(MessageLane, ASilentSenderIsNamed) {
  const MessageLaneOptions options{.part_bytes = 16};
  const auto body = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::milliseconds(50)});
    MessageLane lane(memory, rank - 1, rank == 0 ? 1 : -1, options, "texts");
    if (rank == 1) lane.Receive();
  };
  EXPECT_THAT(ErrorOf([&] { RunRankThreads(2, MessageLane::BytesPerRank(options), body); },
                      ErrorKind::kTimeout),
              HasSubstr("rank 1 waited 0.05 s for rank 0 in pipeline: texts"));
}

}  // namespace
}  // namespace switchyard
