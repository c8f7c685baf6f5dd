#include "comm/device/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "comm/device/staged_rounds.h"
#include "comm/device/test_collectives.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr SymmetricMemory::Options kOptions{.timeout = std::chrono::milliseconds(60'000)};

class CommunicatorSizesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, CommunicatorSizesTest, ::testing::Range(1, 9));

// Small staging buffers: messages take several rounds.
TEST_P(CommunicatorSizesTest, CollectivesOfAnyLength) {
  RunRankThreads(GetParam(), kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    constexpr size_t kStaging = 4096;
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(memory.world()), "tp", kStaging);
    RandomCollectives(comm, kStaging).Run(200);
  });
}

// Collectives among the active ranks of an epoch are those of a world without the others.
TEST(CommunicatorTest, CollectivesSkipAbsentRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const int world = 2 + static_cast<int>(random() % 7);
    std::vector<int> absent, active;
    for (int rank = 0; rank < world; ++rank) (random() % 3 == 0 ? absent : active).push_back(rank);
    if (active.empty()) {
      active.push_back(absent.back());
      absent.pop_back();
    }
    const auto arena = SharedArena::Create(world, kBytes);
    arena->EnableEpochs();
    arena->BeginEpoch("", absent);
    EXPECT_EQ(arena->ActiveRanks(), active);
    const MeshShape shape{.tp = static_cast<int>(active.size()),
                          .ep = static_cast<int>(active.size()),
                          .dp = static_cast<int>(active.size())};
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < active.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto comm = RankComm::Create(arena, shape, active[i], kOptions);
        EXPECT_EQ(comm->mesh.rank(), static_cast<int>(i));
        EXPECT_EQ(comm->ep->size(), static_cast<int>(active.size()));
        RandomCollectives(*comm->ep, Communicator::kStagingBytes).Run(10);
      });
    }
    threads.clear();
    for (const int rank : absent) EXPECT_FALSE(arena->Joined(rank));
  }
}

// Large staging buffers: one-shot and two-shot all-reduce, in one round and in several.
TEST_P(CommunicatorSizesTest, LongAllReduceIsTheSumInGroupOrder) {
  RunRankThreads(GetParam(), kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(memory.world()), "tp", size_t{1} << 20);
    for (const size_t count : {1u, 15u, 1024u, 1025u, 20'000u, 100'003u, 300'000u}) {
      auto data = Values(rank, count, static_cast<unsigned>(count));
      comm.AllReduceSum(data.data(), count);
      ASSERT_TRUE(SameBits(data, SumOfAll(comm.size(), count, static_cast<unsigned>(count))));
    }
  });
}

// The sum of an element depends neither on the length of the message nor on its position.
TEST(CommunicatorTest, AnElementsSumDoesNotDependOnTheMessage) {
  RunRankThreads(4, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(4), "tp", size_t{1} << 20);
    auto whole = Values(rank, 70'000, 1);
    std::vector<float> piece(whole.begin() + 12'345, whole.begin() + 12'345 + 999);
    comm.AllReduceSum(whole.data(), whole.size());
    comm.AllReduceSum(piece.data(), piece.size());
    EXPECT_TRUE(SameBits(piece, {whole.begin() + 12'345, whole.begin() + 12'345 + 999}));
  });
}

TEST(CommunicatorTest, GroupsOfTp4Ep2WorkSideBySide) {
  const MeshShape shape{.tp = 4, .ep = 2};
  const size_t bytes = RankComm::BytesPerRank(shape);
  RunRankThreads(4, bytes, [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    const auto comm = RankComm::Create(arena, shape, rank, kOptions);
    EXPECT_LE(comm->memory->bytes_used(), arena->bytes_per_rank());
    EXPECT_EQ(comm->ep->size(), 2);
    EXPECT_EQ(comm->ep->rank(), rank / 2);
    EXPECT_EQ(comm->moe_tp->rank(), rank % 2);
    for (int round = 0; round < 50; ++round) {
      float ep = static_cast<float>(1 << rank), slices = ep, all = ep;
      comm->ep->AllReduceSum(&ep, 1);
      comm->moe_tp->AllReduceSum(&slices, 1);
      comm->tp->AllReduceSum(&all, 1);
      ASSERT_EQ(ep, rank % 2 == 0 ? 1 + 4 : 2 + 8);
      ASSERT_EQ(slices, rank < 2 ? 1 + 2 : 4 + 8);
      ASSERT_EQ(all, 15);
    }
  });
}

TEST(CommunicatorTest, AttentionGroupsOfTp4Dp2) {
  const MeshShape shape{.tp = 4, .ep = 4, .dp = 2};
  RunRankThreads(4, RankComm::BytesPerRank(shape), [&](int rank, const auto& arena) {
    const auto comm = RankComm::Create(arena, shape, rank, kOptions);
    EXPECT_LE(comm->memory->bytes_used(), arena->bytes_per_rank());
    EXPECT_EQ(comm->attn_tp->size(), 2);
    EXPECT_EQ(comm->attn_tp->rank(), rank % 2);
    auto sum = static_cast<float>(1 << rank);
    comm->attn_tp->AllReduceSum(&sum, 1);
    EXPECT_EQ(sum, rank < 2 ? 1 + 2 : 4 + 8);
  });
}

TEST(CommunicatorTest, AGroupOfOneTakesNoMemory) {
  const MeshShape shape;
  EXPECT_EQ(RankComm::BytesPerRank(shape), 0u);
  const auto comm = RankComm::Create(SharedArena::Create(1, 0), shape, 0);
  EXPECT_EQ(comm->memory->bytes_used(), 0u);
  float x = 3;
  comm->tp->AllReduceSum(&x, 1);
  comm->ep->Barrier("alone");
  float y = 0;
  comm->attn_tp->ReduceScatterV(&x, &y, std::vector<size_t>{1});
  EXPECT_EQ(x, 3);
  EXPECT_EQ(y, 3);
  EXPECT_EQ(comm->moe_tp->Broadcast("all aboard", true), "all aboard");
}

// The leader is idle for longer than the timeout, and then sends a long message.
TEST(CommunicatorTest, AnIdleBroadcastWaitsAndThenRunsInRounds) {
  RunRankThreads(3, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::milliseconds(2000)});
    Communicator comm(memory, World(3), "tp", 4096);
    const std::string message = Text(100'000, 1);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    EXPECT_EQ(comm.Broadcast(rank == 0 ? message : "", true), message);
  });
}

TEST(CommunicatorTest, ATimeoutNamesTheMissingRank) {
  const auto arena = SharedArena::Create(3, kBytes);
  SymmetricMemory memory(arena, 2, {.timeout = std::chrono::milliseconds(50)});
  Communicator comm(memory, {0, 2}, "ep", 4096);
  float x = 1;
  try {
    comm.AllReduceSum(&x, 1);
    FAIL() << "no other rank is running";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_STREQ(error.what(), "rank 2 waited 0.05 s for rank 0 in ep all-reduce (round 1)");
  }
}

// Runs one round. With `everyone`, every member sends a distinct number to every other member.
// Otherwise only member 0 sends, and all others read from it.
void SendAndReceive(StagedRounds& rounds, bool everyone, uint32_t value_of_rank0) {
  rounds.Begin("wrap");
  if (everyone || rounds.rank() == 0) {
    for (int k = 0; k < rounds.num_peers(); ++k) {
      const uint32_t value = value_of_rank0 + static_cast<uint32_t>(rounds.rank());
      std::memcpy(rounds.Outbox(rounds.Peer(k)), &value, sizeof value);
      rounds.Post(rounds.Peer(k), sizeof value);
    }
  } else {
    rounds.PostToAll();
  }
  for (int k = 0; k < rounds.num_peers(); ++k) {
    const int peer = rounds.Peer(k);
    if (!everyone && (rounds.rank() == 0 || peer != 0)) continue;
    uint32_t value = 0;
    std::memcpy(&value, rounds.Inbox(peer), sizeof value);
    ASSERT_EQ(value, value_of_rank0 + static_cast<uint32_t>(peer));
  }
}

TEST(StagedRoundsTest, SlotsStayApartWhileTheCounterWraps) {
  RunRankThreads(3, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    StagedRounds rounds(memory, World(3), 4096);
    for (const uint32_t skip : {0x70000000u, 0x70000000u, 0x1fffffe0u}) {
      SendAndReceive(rounds, true, 1);
      rounds.Skip(skip);
    }
    for (uint32_t i = 0; i < 64; ++i) SendAndReceive(rounds, i % 4 == 0, i * 10);
  });
}

}  // namespace
}  // namespace switchyard
