#include "comm/device/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "comm/device/staged_rounds.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr SymmetricMemory::Options kOptions{.timeout = std::chrono::milliseconds(60'000)};

// What member `rank` holds: numbers whose sum depends on the order of the additions.
std::vector<float> Values(int rank, size_t count, unsigned salt) {
  std::mt19937 random(salt * 1000 + static_cast<unsigned>(rank));
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(uniform(random), static_cast<int>(random() % 20));
  return values;
}

std::vector<float> SumOfAll(int size, size_t count, unsigned salt) {
  std::vector<float> sum = Values(0, count, salt);
  for (int rank = 1; rank < size; ++rank) {
    const auto values = Values(rank, count, salt);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<int> World(int size) {
  std::vector<int> group(size);
  std::iota(group.begin(), group.end(), 0);
  return group;
}

std::string Text(size_t length, unsigned salt) {
  std::mt19937 random(salt);
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// One collective after the other, of lengths from nothing to several rounds, all of one seed.
class Drill {
 public:
  Drill(Communicator& comm, size_t staging_bytes) : comm_(comm), staging_(staging_bytes) {}

  void Run(unsigned steps) {
    std::mt19937 random(7);
    for (unsigned step = 0; step < steps; ++step) {
      const unsigned operation = random() % 6;
      // Mostly a round or less; now and then up to three rounds.
      const size_t bytes = random() % (random() % 4 == 0 ? 2 * staging_ : staging_ / 16 + 1);
      switch (operation) {
        case 0:
          Expect(AllReduce(bytes / 4, step));
          break;
        case 1:
          Expect(AllGather(bytes, step));
          break;
        case 2:
          Expect(AllGatherV(bytes, step));
          break;
        case 3:
          Expect(ReduceScatter(bytes / 4, step));
          break;
        case 4:
          Expect(Broadcast(bytes, step));
          break;
        default:
          comm_.Barrier("drill");
          break;
      }
    }
  }

 private:
  void Expect(bool ok) {
    if (!ok) throw std::runtime_error("wrong result");
  }

  bool AllReduce(size_t count, unsigned salt) {
    auto data = Values(comm_.rank(), count, salt);
    comm_.AllReduceSum(data.data(), count);
    return SameBits(data, SumOfAll(comm_.size(), count, salt));
  }

  bool ReduceScatter(size_t count, unsigned salt) {
    const size_t size = static_cast<size_t>(comm_.size());
    const auto in = Values(comm_.rank(), count * size, salt);
    std::vector<float> out(count);
    comm_.ReduceScatterSum(in.data(), out.data(), count);
    const auto all = SumOfAll(comm_.size(), count * size, salt);
    const auto part = all.begin() + static_cast<ptrdiff_t>(count) * comm_.rank();
    return SameBits(out, {part, part + static_cast<ptrdiff_t>(count)});
  }

  bool AllGather(size_t bytes, unsigned salt) {
    const auto size = static_cast<size_t>(comm_.size());
    const auto rank = static_cast<size_t>(comm_.rank());
    std::string expected;
    for (unsigned r = 0; r < size; ++r) expected += Text(bytes, salt * 100 + r);
    std::string out(size * bytes, '?');
    const std::string mine = Text(bytes, salt * 100 + static_cast<unsigned>(rank));
    if (salt % 2 == 0) {
      comm_.AllGather(mine.data(), out.data(), bytes);
    } else {  // from its own place
      std::memcpy(out.data() + rank * bytes, mine.data(), bytes);
      comm_.AllGather(out.data() + rank * bytes, out.data(), bytes);
    }
    return out == expected;
  }

  bool AllGatherV(size_t bytes, unsigned salt) {
    std::vector<size_t> counts(static_cast<size_t>(comm_.size()));
    std::string expected;
    for (unsigned r = 0; r < counts.size(); ++r) {
      counts[r] = (r + salt) % 3 == 0 ? 0 : bytes / (1 + (r + salt) % 5);
      expected += Text(counts[r], salt * 100 + r);
    }
    const auto rank = static_cast<unsigned>(comm_.rank());
    std::string out(expected.size(), '?');
    comm_.AllGatherV(Text(counts[rank], salt * 100 + rank).data(), out.data(), counts);
    return out == expected;
  }

  bool Broadcast(size_t bytes, unsigned salt) {
    const std::string message = Text(salt % 7 == 0 ? 0 : bytes, salt);
    const std::string mine = comm_.rank() == 0 ? message : "not this";
    return comm_.Broadcast(mine, salt % 2 == 0) == message;
  }

  Communicator& comm_;
  size_t staging_;
};

class CommunicatorSizesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, CommunicatorSizesTest, ::testing::Range(1, 9));

// Small staging: messages take several rounds.
TEST_P(CommunicatorSizesTest, CollectivesOfAnyLength) {
  RunRankThreads(GetParam(), kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    constexpr size_t kStaging = 4096;
    SymmetricMemory memory(arena, rank, kOptions);
    Communicator comm(memory, World(memory.world()), "tp", kStaging);
    Drill(comm, kStaging).Run(200);
  });
}

// Large staging: both forms of the all-reduce, in one round and in several.
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

// What an element's sum is does not depend on the length of the message or on its place in it.
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

TEST(CommunicatorTest, AGroupOfOneTakesNoMemory) {
  const MeshShape shape;
  EXPECT_EQ(RankComm::BytesPerRank(shape), 0u);
  const auto comm = RankComm::Create(SharedArena::Create(1, 0), shape, 0);
  EXPECT_EQ(comm->memory->bytes_used(), 0u);
  float x = 3;
  comm->tp->AllReduceSum(&x, 1);
  comm->ep->Barrier("alone");
  EXPECT_EQ(x, 3);
  EXPECT_EQ(comm->moe_tp->Broadcast("all aboard", true), "all aboard");
}

// A leader that has nothing to say for longer than the timeout; then a long message.
TEST(CommunicatorTest, AnIdleBroadcastWaitsAndThenRunsInRounds) {
  RunRankThreads(3, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, {.timeout = std::chrono::milliseconds(2000)});
    Communicator comm(memory, World(3), "tp", 4096);
    const std::string message = Text(100'000, 1);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    EXPECT_EQ(comm.Broadcast(rank == 0 ? message : "", true), message);
  });
}

TEST(CommunicatorTest, ARankThatNeverComesIsNamed) {
  const auto arena = SharedArena::Create(3, kBytes);
  SymmetricMemory memory(arena, 2, {.timeout = std::chrono::milliseconds(50)});
  Communicator comm(memory, {0, 2}, "ep", 4096);
  float x = 1;
  try {
    comm.AllReduceSum(&x, 1);
    FAIL() << "nobody else is there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_STREQ(error.what(), "rank 2 waited 0.05 s for rank 0 in ep all-reduce (round 1)");
  }
}

// One round in which every member tells every other one a number of its own, or, where not
// `everyone`, only member 0 speaks and is heard.
void TellAndListen(StagedRounds& rounds, bool everyone, uint32_t topic) {
  rounds.Begin("wrap");
  if (everyone || rounds.rank() == 0) {
    for (int k = 0; k < rounds.num_peers(); ++k) {
      const uint32_t value = topic + static_cast<uint32_t>(rounds.rank());
      std::memcpy(rounds.Outbox(rounds.Peer(k)), &value, sizeof value);
      rounds.Post(rounds.Peer(k));
    }
  } else {
    rounds.PostToAll();
  }
  for (int k = 0; k < rounds.num_peers(); ++k) {
    const int peer = rounds.Peer(k);
    if (!everyone && (rounds.rank() == 0 || peer != 0)) continue;
    uint32_t value = 0;
    std::memcpy(&value, rounds.Inbox(peer), sizeof value);
    ASSERT_EQ(value, topic + static_cast<uint32_t>(peer));
  }
}

TEST(StagedRoundsTest, SlotsStayApartWhileTheCounterWraps) {
  RunRankThreads(3, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, kOptions);
    StagedRounds rounds(memory, World(3), 4096);
    for (const uint32_t skip : {0x70000000u, 0x70000000u, 0x1fffffe0u}) {
      TellAndListen(rounds, true, 1);
      rounds.Skip(skip);
    }
    for (uint32_t i = 0; i < 64; ++i) TellAndListen(rounds, i % 4 == 0, i * 10);
  });
}

}  // namespace
}  // namespace switchyard
