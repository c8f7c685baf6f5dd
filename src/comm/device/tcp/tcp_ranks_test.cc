// Ranks connected over TCP, as threads of this process.
#include "comm/device/tcp/tcp_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "comm/device/communicator.h"
#include "comm/device/frames.h"
#include "comm/device/rank_threads.h"
#include "comm/device/staged_rounds.h"
#include "comm/device/test_collectives.h"
#include "comm/net/authenticated_listener.h"
#include "comm/net/test_strangers.h"
#include "core/error.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBytes = size_t{4} << 20;
constexpr SymmetricMemory::Options kOptions{.timeout = milliseconds(60'000)};

class TcpNodesTest : public ::testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndRanksPerNode, TcpNodesTest,
                         ::testing::Values(std::pair{2, 1}, std::pair{3, 1}, std::pair{4, 2},
                                           std::pair{6, 2}, std::pair{8, 4}),
                         [](const auto& info) {
                           return fmt::format("{}Ranks{}PerNode", info.param.first,
                                              info.param.second);
                         });

// Sums over TCP are bitwise equal to plain loops in rank order, like sums over shared memory.
// Messages have from zero bytes to several rounds.
TEST_P(TcpNodesTest, CollectivesOfAnyLength) {
  const auto [world, per_node] = GetParam();
  RunTcpRankThreads(world, per_node, kBytes, [](int rank, const auto& arena) {
    constexpr size_t kStaging = 4096;
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(memory.world()), "tp", kStaging);
    Drill(comm, kStaging).Run(150);
  });
}

TEST(TcpRanksTest, LongMessages) {
  RunTcpRankThreads(4, 1, kBytes, [](int rank, const auto& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(4), "tp", size_t{3} << 20);
    for (const size_t count : {100'003u, 700'000u}) {
      auto data = Values(rank, count, 3);
      comm.AllReduceSum(data.data(), count);
      ASSERT_TRUE(SameBits(data, SumOfAll(4, count, 3)));
    }
  });
}

TEST(TcpRanksTest, OnlyRanksOfOtherNodesAreRemote) {
  RunTcpRankThreads(4, 2, kBytes, [](int rank, const auto& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    for (int peer = 0; peer < 4; ++peer) EXPECT_EQ(memory.Mapped(peer), peer / 2 == rank / 2);
    Communicator(memory, World(4), "tp", 4096).Barrier("all looked");
  });
}

TEST(TcpRanksTest, RoundNumbersWrap) {
  RunTcpRankThreads(3, 1, kBytes, [](int rank, const auto& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    StagedRounds rounds(memory, World(3), 4096);
    for (const uint32_t skip : {0x70000000u, 0x70000000u, 0x1fffffe0u, 0u}) {
      for (uint32_t i = 0; i < 40; ++i) {
        rounds.Begin("wrap");
        for (int k = 0; k < 2; ++k) {
          std::memcpy(rounds.Outbox(rounds.Peer(k)), &i, sizeof i);
          rounds.Post(rounds.Peer(k), sizeof i);
        }
        for (int k = 0; k < 2; ++k) {
          ASSERT_EQ(std::memcmp(rounds.Inbox(rounds.Peer(k)), &i, sizeof i), 0);
        }
      }
      if (skip > 0) rounds.Skip(skip);
    }
  });
}

// Two ranks of two nodes, and the buffers of one of them.
struct Pair {
  explicit Pair(const std::shared_ptr<SharedArena>& arena, int rank)
      : memory(arena, rank, kOptions),
        data(memory.Allocate(kSize)),
        flag(memory.Allocate(4)),
        done(memory.Allocate(4)) {}
  static constexpr size_t kSize = size_t{1} << 20;
  SymmetricMemory memory;
  size_t data, flag, done;
};

// More ranges than fit one frame, some of them adjacent, so that they are merged.
TEST(TcpRanksTest, ManyRangesArriveBeforeTheirFlagAndNothingElseDoes) {
  RunTcpRankThreads(2, 1, 2 * Pair::kSize, [](int rank, const auto& arena) {
    Pair pair(arena, rank);
    for (uint32_t round = 1; round <= 3; ++round) {
      if (rank == 0) {
        std::memset(pair.memory.At(1, pair.data), static_cast<int>(round), Pair::kSize);
        for (size_t row = 0; row < 2000; ++row) {
          if (row % 3 == 2) continue;
          pair.memory.Wrote(1, pair.data + row * 100, 100);
        }
        pair.memory.Raise(1, pair.flag, round);
        pair.memory.Wait(pair.done, round, 1, "done");
      } else {
        pair.memory.Wait(pair.flag, round, 0, "rows");
        const std::byte* bytes = pair.memory.Local(pair.data);
        for (size_t i = 0; i < Pair::kSize; ++i) {
          const bool sent = i < 200'000 && i / 100 % 3 != 2;
          ASSERT_EQ(static_cast<uint32_t>(bytes[i]), sent ? round : 0u) << i;
        }
        pair.memory.Raise(0, pair.done, round);
      }
    }
  });
}

// Both ranks fetch at the same time, so each has to serve the other while it waits.
TEST(TcpRanksTest, FetchesCrossAndTakeWhatIsThere) {
  RunTcpRankThreads(2, 1, 2 * Pair::kSize, [](int rank, const auto& arena) {
    Pair pair(arena, rank);
    const int peer = 1 - rank;
    for (int round = 1; round <= 20; ++round) {
      std::memset(pair.memory.Local(pair.data), round * 2 + rank, Pair::kSize);
      pair.memory.Raise(peer, pair.flag, static_cast<uint32_t>(round));
      pair.memory.Wait(pair.flag, static_cast<uint32_t>(round), peer, "rows are ready");
      pair.memory.Fetch(peer, pair.data + 5, Pair::kSize - 5, "pull");
      const std::byte* bytes = pair.memory.At(peer, pair.data);
      for (size_t i = 5; i < Pair::kSize; ++i) {
        ASSERT_EQ(static_cast<int>(bytes[i]), round * 2 + peer);
      }
      pair.memory.Raise(peer, pair.done, static_cast<uint32_t>(round));
      pair.memory.Wait(pair.done, static_cast<uint32_t>(round), peer, "rows are pulled");
    }
  });
}

TEST(TcpRanksTest, AWaitForARemoteRankTimesOutByName) {
  EXPECT_EQ(ErrorOf(
                [] {
                  RunTcpRankThreads(2, 1, kBytes, [](int rank, const auto& arena) {
                    SymmetricMemory memory(arena, rank, {.timeout = milliseconds(50)});
                    if (rank == 1) {
                      std::this_thread::sleep_for(milliseconds(500));
                      return;
                    }
                    Communicator comm(memory, World(2), "tp", 4096);
                    comm.Barrier("test barrier");
                  });
                },
                ErrorKind::kTimeout),
            "rank 0 waited 0.05 s for rank 1 in test barrier (round 1)");
}

TEST(TcpRanksTest, AFailureReachesRanksThatWaitInOtherNodes) {
  std::atomic<int> stopped = 0;
  const std::string what = ErrorOf(
      [&] {
        RunTcpRankThreads(4, 2, kBytes, [&](int rank, const auto& arena) {
          SymmetricMemory memory(arena, rank, kOptions);
          Communicator comm(memory, World(4), "tp", 4096);
          if (rank == 3) {
            comm.Barrier("start");
            throw Resource("no coal");
          }
          const std::string heard = ErrorOf(
              [&] {
                comm.Barrier("start");
                comm.Barrier("departure");
              },
              ErrorKind::kPeer);
          EXPECT_EQ(heard, "rank 3 failed: no coal");
          ++stopped;
        });
      },
      ErrorKind::kResource);
  EXPECT_EQ(what, "no coal");
  EXPECT_EQ(stopped, 3);
}

// Beats until all of `ranks` have a heartbeat or, if not `beating`, until none of them has one.
void BeatUntil(bool beating, SymmetricMemory& memory, const SharedArena& arena,
               const std::vector<int>& ranks) {
  const auto give_up = std::chrono::steady_clock::now() + kOptions.timeout;
  const auto holds = [&] {
    return std::ranges::all_of(ranks, [&](int r) { return (arena.beats(r) > 0) == beating; });
  };
  while (!holds() && std::chrono::steady_clock::now() < give_up) {
    memory.Beat();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(holds());
}

TEST(TcpRanksTest, HeartbeatsReachRank0AndThoseOfRank0ReachEveryNode) {
  RunTcpRankThreads(4, 2, kBytes, [](int rank, const auto& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(4), "tp", 4096);
    const std::vector<int> seen = rank == 0 ? std::vector<int>{1, 2, 3} : std::vector<int>{0};
    memory.StartHeartbeat();
    BeatUntil(true, memory, *arena, seen);
    if (rank == 2) {
      EXPECT_EQ(arena->beats(1), 0u);  // only rank 0's node receives the counters of other nodes
    }
    comm.Barrier("all seen");
    memory.StopHeartbeat();
    BeatUntil(false, memory, *arena, seen);
    comm.Barrier("all ended");
  });
}

// Connects to rank 0 as rank 1.
OpenedConnection Introduce(const TcpWorld& world, const std::string& token) {
  return OpenAuthenticated(world.listeners[0], {token, true},
                           {.purpose = Purpose::kRank, .from = 1, .to = 0},
                           IoLimit::After(milliseconds(10'000)));
}

// A world of two ranks: rank 0 is a real rank, and the test emulates rank 1 frame by frame.
class ByHandTest : public ::testing::Test {
 protected:
  ByHandTest() {
    TcpListener theirs = TcpListener::Bind({"127.0.0.1", 0});
    TcpListener mine = TcpListener::Bind({"127.0.0.1", 0});
    world_ = {.token = TcpWorld::NewToken(), .ranks_per_node = 1};
    world_.listeners = {mine.address(), theirs.address()};
    arena_ = SharedArena::Create(2, kBytes);
    std::thread peer([&] {
      to_rank0_ = Introduce(world_, world_.token).stream;
      AuthenticatedListener listener(
          theirs, {.key = {world_.token, true}, .purpose = Purpose::kRank, .self = 1});
      from_rank0_ = std::move(listener.Accept(IoLimit::After(milliseconds(10'000)))->stream);
    });
    ConnectTcpRanks(*arena_, 0, std::move(mine), world_, milliseconds(10'000));
    peer.join();
  }

  void Send(const void* bytes, size_t size) {
    iovec part{const_cast<void*>(bytes), size};
    ASSERT_EQ(to_rank0_->Send(std::span(&part, 1)), IoResult::kDone);
  }
  void SendFrame(const Frame& frame) { Send(&frame, sizeof frame); }

  // The error that ends rank 0's wait for the peer.
  std::string WaitEnds() {
    SymmetricMemory memory(arena_, 0, kOptions);
    return ErrorOf([&] { memory.Wait(memory.Allocate(4), 1, 1, "x", /*idle=*/true); },
                   ErrorKind::kPeer);
  }

  TcpWorld world_;
  std::shared_ptr<SharedArena> arena_;
  std::optional<TcpStream> to_rank0_, from_rank0_;
};

TEST_F(ByHandTest, AClosedConnectionNamesTheRankAndItsHost) {
  to_rank0_.reset();
  EXPECT_EQ(WaitEnds(), "rank 1 (node 1, 127.0.0.1) is gone: its connection closed");
}

TEST_F(ByHandTest, SendingToARankThatIsGoneSaysSo) {
  to_rank0_.reset();
  from_rank0_.reset();
  SymmetricMemory memory(arena_, 0, kOptions);
  const size_t flag = memory.Allocate(4);
  EXPECT_EQ(ErrorOf(
                [&] {
                  for (uint32_t i = 1; i < 1000; ++i) memory.Raise(1, flag, i);
                },
                ErrorKind::kPeer),
            "rank 1 (node 1, 127.0.0.1) is gone: its connection closed");
}

TEST_F(ByHandTest, WhatLiesOutsideOfTheArenaIsRefused) {
  SendFrame({.kind = FrameKind::kFetch, .offset = kBytes - 4, .count = 5});
  EXPECT_THAT(WaitEnds(), AllOf(HasSubstr("rank 1 (node 1"), HasSubstr("an invalid message"),
                                HasSubstr("outside")));
}

TEST_F(ByHandTest, AWriteOutsideOfTheArenaIsRefused) {
  SendFrame({.kind = FrameKind::kWrite, .count = 1});
  const uint64_t range[] = {UINT64_MAX - 1, 8};
  Send(range, sizeof range);
  EXPECT_THAT(WaitEnds(), HasSubstr("outside"));
}

TEST_F(ByHandTest, AFlagThatIsNoneIsRefused) {
  SendFrame({.kind = FrameKind::kWriteAndRaise, .value = 1, .offset = 2});
  EXPECT_THAT(WaitEnds(), HasSubstr("misaligned flag offset 2"));
}

TEST_F(ByHandTest, AMessageOfNoKindIsRefused) {
  SendFrame({.kind = static_cast<FrameKind>(77)});
  EXPECT_THAT(WaitEnds(), HasSubstr("unknown kind 77"));
}

TEST_F(ByHandTest, TheHeartbeatOfAPeerIsTheLastOneUntilItLeaves) {
  const auto arrives = [&](uint64_t beats) {
    const auto give_up = std::chrono::steady_clock::now() + kOptions.timeout;
    while (arena_->beats(1) != beats && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(milliseconds(1));
    return arena_->beats(1) == beats;
  };
  SendFrame({.kind = FrameKind::kBeat, .count = 7});
  EXPECT_TRUE(arrives(7));
  SendFrame({.kind = FrameKind::kBeat, .count = 9});
  EXPECT_TRUE(arrives(9));
  SendFrame({.kind = FrameKind::kBye});
  EXPECT_TRUE(arrives(0));
}

TEST_F(ByHandTest, TooManyRangesAreRefused) {
  SendFrame({.kind = FrameKind::kWrite, .count = 1u << 30});
  EXPECT_THAT(WaitEnds(), HasSubstr("ranges in one message"));
}

TEST_F(ByHandTest, AFetchThatIsNotAnsweredTimesOutByName) {
  SymmetricMemory memory(arena_, 0, {.timeout = milliseconds(50)});
  EXPECT_EQ(ErrorOf([&] { memory.Fetch(1, 0, 100, "combine"); }, ErrorKind::kTimeout),
            "rank 0 waited 0.05 s for rank 1 (node 1, 127.0.0.1) in combine");
  to_rank0_.reset();  // otherwise rank 0 waits for this end's kBye
}

// The other end does not read, so the connection's buffers fill up.
TEST_F(ByHandTest, APutThatIsNotTakenTimesOutByName) {
  SymmetricMemory memory(arena_, 0, {.timeout = milliseconds(500)});
  const size_t flag = memory.Allocate(4);
  memory.StartHeartbeat();
  EXPECT_EQ(ErrorOf(
                [&] {
                  for (uint32_t i = 1; i < 100; ++i) {
                    memory.Wrote(1, 0, kBytes);
                    memory.Raise(1, flag, i);
                  }
                },
                ErrorKind::kTimeout),
            "rank 0 waited 0.5 s for rank 1 (node 1, 127.0.0.1) to receive a message");
  EXPECT_GT(arena_->beats(0), 1u);  // rank 0 itself still has heartbeats
  to_rank0_.reset();
}

// Rank 0 with its listener, and the listener of a rank 1 that never accepts a connection.
struct LoneRank {
  LoneRank() {
    world = {.token = TcpWorld::NewToken(), .ranks_per_node = 1};
    world.listeners = {mine.address(), theirs.address()};
  }
  TcpListener mine = TcpListener::Bind({"127.0.0.1", 0});
  TcpListener theirs = TcpListener::Bind({"127.0.0.1", 0});
  TcpWorld world;
  std::shared_ptr<SharedArena> arena = SharedArena::Create(2, kBytes);
};

TEST(TcpRanksTest, ARankOfAnotherEngineIsRefusedAndTheMissingOneNamed) {
  LoneRank rank;
  auto other = std::async(std::launch::async,
                          [&] { return Introduce(rank.world, TcpWorld::NewToken()).verdict; });
  EXPECT_EQ(ErrorOf(
                [&] {
                  ConnectTcpRanks(*rank.arena, 0, std::move(rank.mine), rank.world,
                                  milliseconds(300));
                },
                ErrorKind::kTimeout),
            "rank 0 waited 0.3 s for rank 1 (node 1, 127.0.0.1) to connect");
  EXPECT_EQ(other.get(), Verdict::kWrongSecret);
}

TEST(TcpRanksTest, AnotherEngineAtTheAddressOfARankIsAnError) {
  LoneRank rank;
  auto other = std::async(std::launch::async, [&] {
    AuthenticatedListener listener(
        rank.theirs, {.key = {TcpWorld::NewToken(), true}, .purpose = Purpose::kRank, .self = 1});
    listener.Accept(IoLimit::After(milliseconds(500)));
  });
  EXPECT_THAT(ErrorOf(
                  [&] {
                    ConnectTcpRanks(*rank.arena, 0, std::move(rank.mine), rank.world,
                                    milliseconds(60'000));
                  },
                  ErrorKind::kPeer),
              HasSubstr("rank 0 and rank 1 (node 1, 127.0.0.1) have different secrets"));
  other.get();
}

TEST(TcpRanksTest, AStopConditionEndsTheWait) {
  LoneRank rank;
  EXPECT_FALSE(ConnectTcpRanks(*rank.arena, 0, std::move(rank.mine), rank.world,
                               milliseconds(60'000), [] { return true; }));
}

TEST(TcpRanksTest, StrangersDoNotKeepRanksFromConnecting) {
  TcpWorld world{.token = TcpWorld::NewToken(), .ranks_per_node = 1};
  std::vector<TcpListener> listeners;
  std::vector<TcpStream> strangers;
  for (int rank = 0; rank < 3; ++rank) {
    listeners.push_back(TcpListener::Bind({"127.0.0.1", 0}));
    world.listeners.push_back(listeners.back().address());
    for (TcpStream& stream : OpenStrangers(world.listeners.back())) {
      strangers.push_back(std::move(stream));
    }
  }
  std::vector<std::shared_ptr<SharedArena>> arenas;
  arenas.reserve(3);
  for (int rank = 0; rank < 3; ++rank) arenas.push_back(SharedArena::Create(3, kBytes));
  RunRankThreads(arenas, [&](int rank, const auto& arena) {
    ASSERT_TRUE(
        ConnectTcpRanks(*arena, rank, std::move(listeners[rank]), world, milliseconds(60'000)));
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator(memory, World(3), "tp", 4096).Barrier("all connected");
  });
}

}  // namespace
}  // namespace switchyard
