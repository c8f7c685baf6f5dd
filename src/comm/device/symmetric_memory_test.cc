#include "comm/device/symmetric_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "comm/device/communicator.h"
#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr size_t kBytes = size_t{1} << 16;

SymmetricMemory::Options TimeoutOf(int milliseconds) {
  return {.timeout = std::chrono::milliseconds(milliseconds)};
}

template <typename Body>
void ExpectError(ErrorKind kind, const ::testing::Matcher<std::string>& what, Body body) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(std::string(error.what()), what);
  }
}

TEST(SharedArenaTest, AttachesThroughItsDescriptor) {
  const auto arena = SharedArena::Create(3, 1000);
  const auto same = SharedArena::FromFd(dup(arena->fd()));
  EXPECT_EQ(same->world(), 3);
  EXPECT_GE(same->bytes_per_rank(), 1000u);
  SymmetricMemory writer(arena, 0, TimeoutOf(1000));
  SymmetricMemory reader(same, 2, TimeoutOf(1000));
  EXPECT_EQ(arena->joined(), 2);
  EXPECT_TRUE(arena->Joined(2));
  EXPECT_FALSE(arena->Joined(1));

  const size_t word = writer.Allocate(8);
  ASSERT_EQ(reader.Allocate(8), word);
  std::memcpy(writer.At(2, word), "platform", 8);
  EXPECT_EQ(std::memcmp(reader.Local(word), "platform", 8), 0);
}

TEST(SharedArenaTest, ShowsTheRequestsOfEachRank) {
  const auto arena = SharedArena::Create(2, 1000);
  SymmetricMemory memory(arena, 1, TimeoutOf(1000));
  EXPECT_EQ(arena->RecordedRequests(1), std::vector<uint64_t>());
  memory.RecordRequests(std::vector<uint64_t>{7, 9});
  EXPECT_EQ(arena->RecordedRequests(1), (std::vector<uint64_t>{7, 9}));
  EXPECT_EQ(SharedArena::FromFd(dup(arena->fd()))->RecordedRequests(1),
            (std::vector<uint64_t>{7, 9}));
  EXPECT_EQ(arena->RecordedRequests(0), std::vector<uint64_t>());
  memory.RecordRequests(std::vector<uint64_t>(100'000, 1));  // more than the record holds
  EXPECT_EQ(arena->RecordedRequests(1), std::nullopt);
  memory.RecordRequests({});
  EXPECT_EQ(arena->RecordedRequests(1), std::vector<uint64_t>());
}

TEST(SharedArenaTest, KeptMemoryOutlivesEpochs) {
  const auto arena = SharedArena::Create(2, 1000, /*kept_per_rank=*/5000);
  arena->EnableEpochs();
  const auto same = SharedArena::FromFd(dup(arena->fd()));
  for (const int rank : {0, 1}) {
    ASSERT_EQ(same->Kept(rank).size(), 5000u);
    EXPECT_EQ(same->Kept(rank)[4999], std::byte(0));
    std::ranges::fill(same->Kept(rank), std::byte(7 + rank));
  }
  std::memset(SymmetricMemory(same, 1, TimeoutOf(1000)).At(1, 0), 1, 1000);
  arena->BeginEpoch("the front");
  const auto all_are = [](std::span<const std::byte> bytes, int value) {
    return std::ranges::all_of(bytes, [&](std::byte b) { return b == std::byte(value); });
  };
  for (const int rank : {0, 1}) EXPECT_TRUE(all_are(arena->Kept(rank), 7 + rank));
  arena->ClearKept();
  for (const int rank : {0, 1}) EXPECT_TRUE(all_are(arena->Kept(rank), 0));
  EXPECT_TRUE(SharedArena::Create(2, 1000)->Kept(1).empty());

  // Messages leave the kept memory unchanged, and the reverse.
  const auto with_messages = SharedArena::Create(2, 1000, 5000, /*messages=*/true);
  with_messages->EnableEpochs();
  for (const int rank : {0, 1}) std::ranges::fill(with_messages->Kept(rank), std::byte(7 + rank));
  for (const char* message : {"one", "two"}) with_messages->BeginEpoch("the front", {}, message);
  for (const int rank : {0, 1}) EXPECT_TRUE(all_are(with_messages->Kept(rank), 7 + rank));
  with_messages->ClearKept();
  for (const int rank : {0, 1}) EXPECT_TRUE(all_are(with_messages->Kept(rank), 0));
  EXPECT_EQ(with_messages->message(), "two");
}

TEST(SharedArenaTest, AnEpochBeginsWithClearedMemory) {
  const auto arena = SharedArena::Create(2, 1000, /*kept_per_rank=*/0, /*messages=*/true);
  EXPECT_FALSE(arena->has_epochs());
  arena->EnableEpochs();
  {
    SymmetricMemory memory(arena, 1, TimeoutOf(1000));
    const size_t flag = memory.Allocate(4);
    memory.Raise(1, flag, 7);
    memory.RecordRequests(std::vector<uint64_t>{7});
    memory.StartHeartbeat();
    memory.SetHeartbeatTimeout(std::chrono::milliseconds(90));
    EXPECT_EQ(arena->HeartbeatTimeout(1), std::chrono::milliseconds(90));
    arena->Abort("rank 0 has ended");
  }
  std::string endpoint;
  std::thread rank(
      [&] { endpoint = SharedArena::FromFd(dup(arena->fd()))->WaitForEpoch(1, arena->epoch()); });
  while (!arena->Waits(1)) std::this_thread::yield();
  EXPECT_EQ(arena->beats(1), 0u);
  EXPECT_EQ(arena->message(), "");
  arena->BeginEpoch("the front", {}, "a placement");
  rank.join();
  EXPECT_EQ(endpoint, "the front");
  EXPECT_EQ(arena->endpoint(), "the front");
  EXPECT_EQ(SharedArena::FromFd(dup(arena->fd()))->message(), "a placement");
  EXPECT_FALSE(arena->aborted());
  EXPECT_EQ(arena->AbortReason(), "");
  EXPECT_FALSE(arena->Waits(1));
  EXPECT_EQ(arena->RecordedRequests(1), std::vector<uint64_t>());
  EXPECT_EQ(arena->HeartbeatTimeout(1), std::chrono::milliseconds(0));
  SymmetricMemory memory(arena, 1, TimeoutOf(1000));
  EXPECT_FALSE(memory.Reached(memory.Allocate(4), 1));
}

TEST(SharedArenaTest, AMessageBelongsToOneEpoch) {
  const auto arena = SharedArena::Create(1, 1000, /*kept_per_rank=*/0, /*messages=*/true);
  arena->EnableEpochs();
  for (const std::string& message :
       {std::string("one"), std::string(SharedArena::kMaxMessageBytes, 'x'), std::string("two")}) {
    arena->BeginEpoch("", {}, message);
    EXPECT_TRUE(arena->message() == message);
  }
  ExpectError(ErrorKind::kInvalid, HasSubstr("want at most"), [&] {
    arena->BeginEpoch("", {}, std::string(SharedArena::kMaxMessageBytes + 1, 'x'));
  });
  EXPECT_EQ(arena->message(), "two");
  arena->BeginEpoch("");
  EXPECT_EQ(arena->message(), "");
}

TEST(SharedArenaTest, ASpareWaitsForAPlace) {
  const auto arena = SharedArena::Create(3, 1000);
  const int slot = SharedArena::kMaxSpares - 1;
  for (const int place : {2, 0}) {
    arena->ClearSpare(slot);
    EXPECT_FALSE(arena->SpareWaits(slot));
    arena->CountSpareStep(slot);
    EXPECT_EQ(arena->spare_steps(slot), 1u);
    int rank = -1;
    std::thread spare([&] { rank = SharedArena::FromFd(dup(arena->fd()))->AwaitPlace(slot); });
    while (!arena->SpareWaits(slot)) std::this_thread::yield();
    EXPECT_FALSE(arena->SpareWaits(0));
    arena->GivePlace(slot, place);
    EXPECT_FALSE(arena->SpareWaits(slot));
    spare.join();
    EXPECT_EQ(rank, place);
    EXPECT_TRUE(arena->PlaceTaken(slot));
  }
}

TEST(SharedArenaTest, RefusesWhatIsNoArena) {
  const auto is_refused = [](int fd) {
    ExpectError(ErrorKind::kInvalid, HasSubstr("is not an arena of shared memory"),
                [fd] { SharedArena::FromFd(fd); });
  };
  is_refused(open("/dev/null", O_RDWR));
  is_refused(12345);
  const int empty = memfd_create("empty", MFD_CLOEXEC);
  is_refused(empty);
  const int zeros = memfd_create("zeros", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(zeros, 1 << 20), 0);
  is_refused(zeros);

  // A header whose sizes contradict the size of the file.
  const auto arena = SharedArena::Create(2, kBytes);
  std::vector<char> header(8192);
  ASSERT_EQ(pread(arena->fd(), header.data(), header.size(), 0), 8192);
  const int cut = memfd_create("cut", MFD_CLOEXEC);
  ASSERT_EQ(pwrite(cut, header.data(), header.size(), 0), 8192);
  ASSERT_EQ(ftruncate(cut, 1 << 16), 0);
  is_refused(cut);
}

TEST(SharedArenaTest, RefusesSizesOutOfRange) {
  for (const int world : {-1, 0, 100'000}) {
    ExpectError(ErrorKind::kInvalid, HasSubstr("ranks: want 1 to"),
                [&] { SharedArena::Create(world, kBytes); });
  }
  ExpectError(ErrorKind::kInvalid, HasSubstr("out of range"),
              [] { SharedArena::Create(4, SIZE_MAX / 2); });
}

TEST(SharedArenaTest, CannotBeTruncated) {
  const auto arena = SharedArena::Create(1, kBytes);
  EXPECT_NE(ftruncate(arena->fd(), 0), 0);
}

TEST(SymmetricMemoryTest, AllocatesAlignedAndFailsWhenFull) {
  SymmetricMemory memory(SharedArena::Create(1, 4096), 0, {});
  EXPECT_EQ(memory.Allocate(10), 0u);
  EXPECT_EQ(memory.Allocate(1), 64u);
  EXPECT_EQ(memory.Allocate(1, 1024), 1024u);
  EXPECT_EQ(memory.bytes_used(), 1025u);
  ExpectError(ErrorKind::kResource, AllOf(HasSubstr("4096"), HasSubstr("1025"), HasSubstr("5000")),
              [&] { memory.Allocate(5000); });
  ExpectError(ErrorKind::kResource, HasSubstr("is full"), [&] { memory.Allocate(SIZE_MAX); });
  EXPECT_EQ(memory.Allocate(4096 - 1088), 1088u);  // to the last byte
}

TEST(SymmetricMemoryTest, FlagsCompareModulo32Bits) {
  SymmetricMemory memory(SharedArena::Create(1, kBytes), 0, TimeoutOf(1));
  const size_t flag = memory.Allocate(4);
  EXPECT_TRUE(memory.Reached(flag, 0));
  EXPECT_FALSE(memory.Reached(flag, 1));
  memory.Raise(0, flag, 0xfffffffe);
  EXPECT_TRUE(memory.Reached(flag, 0xfffffffe));
  EXPECT_FALSE(memory.Reached(flag, 2));
  memory.Raise(0, flag, 2);
  EXPECT_TRUE(memory.Reached(flag, 0xfffffffe));
  EXPECT_TRUE(memory.Reached(flag, 2));
  memory.Wait(flag, 0xffffffff, 0, "nothing");
}

// Passes a counter back and forth, sometimes after a pause, so that waits end in each stage.
TEST(SymmetricMemoryTest, WhatWasWrittenBeforeAFlagIsSeenAfterIt) {
  RunRankThreads(2, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, TimeoutOf(60'000));
    const size_t data = memory.Allocate(8);
    const size_t flag = memory.Allocate(4);
    const int peer = 1 - rank;
    for (uint32_t round = 1; round <= 3000; ++round) {
      if (rank == 1) {
        memory.Wait(flag, round, peer, "ping");
        uint64_t seen = 0;
        std::memcpy(&seen, memory.Local(data), 8);
        ASSERT_EQ(seen, uint64_t{round} * 3);
      }
      if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const uint64_t value = uint64_t{round} * 3;
      std::memcpy(memory.At(peer, data), &value, 8);
      memory.Raise(peer, flag, round);
      if (rank == 0) memory.Wait(flag, round, peer, "pong");
    }
  });
}

TEST(SymmetricMemoryTest, ATimeoutNamesBothRanksAndTheStage) {
  SymmetricMemory memory(SharedArena::Create(4, kBytes), 2, TimeoutOf(50));
  const size_t flag = memory.Allocate(4);
  ExpectError(ErrorKind::kTimeout,
              ::testing::StrEq("rank 2 waited 0.05 s for rank 0 in tp all-reduce (round 17)"),
              [&] { memory.Wait(flag, 17, 0, "tp all-reduce"); });
}

TEST(SymmetricMemoryTest, AnIdleWaitOutlastsTheTimeoutAndWakes) {
  RunRankThreads(2, kBytes, [](int rank, const std::shared_ptr<SharedArena>& arena) {
    SymmetricMemory memory(arena, rank, TimeoutOf(20));
    const size_t flag = memory.Allocate(4);
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      memory.Raise(1, flag, 1);
      return;
    }
    timespec before{}, after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    memory.Wait(flag, 1, 0, "idle", /*idle=*/true);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const double cpu_ms =
        (after.tv_sec - before.tv_sec) * 1e3 + (after.tv_nsec - before.tv_nsec) / 1e6;
    EXPECT_LT(cpu_ms, 75) << "an idle wait must sleep";
  });
}

TEST(SymmetricMemoryTest, AWaitWithADeadlineReturnsWhetherTheFlagWasRaised) {
  const auto arena = SharedArena::Create(2, kBytes);
  SymmetricMemory memory(arena, 0, {}), peer(arena, 1, {});
  const size_t flag = memory.Allocate(4);
  EXPECT_FALSE(memory.WaitFor(flag, 1, std::chrono::milliseconds(5)));
  peer.Raise(0, flag, 1);
  EXPECT_TRUE(memory.WaitFor(flag, 1, std::chrono::milliseconds(5)));
  EXPECT_FALSE(memory.WaitFor(flag, 2, std::chrono::milliseconds(0)));
}

TEST(SymmetricMemoryTest, AbortEndsPresentAndLaterWaits) {
  const auto arena = SharedArena::Create(2, kBytes);
  SymmetricMemory memory(arena, 0, {});
  const size_t flag = memory.Allocate(4);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    arena->Abort("rank 1 was derailed");
    arena->Abort("too late to count");
  });
  const auto is_aborted = [&](uint32_t value, bool idle) {
    ExpectError(ErrorKind::kPeer, ::testing::StrEq("rank 1 was derailed"),
                [&] { memory.Wait(flag, value, 1, "idle", idle); });
  };
  is_aborted(1, true);
  other.join();
  is_aborted(1, false);
  is_aborted(0, false);  // reached, but the world is aborted
}

TEST(SymmetricMemoryTest, ALongReasonIsTruncated) {
  const auto arena = SharedArena::Create(1, kBytes);
  SymmetricMemory memory(arena, 0, {});
  memory.Abort(std::string(100'000, 'x'));
  ExpectError(ErrorKind::kPeer, EndsWith("xxx"), [&] { memory.Wait(0, 1, 0, "anything"); });
}

TEST(RankThreadsTest, TheFirstErrorIsRethrownAndTheOthersAreStopped) {
  std::atomic<int> stopped = 0;
  ExpectError(ErrorKind::kResource, ::testing::StrEq("no coal"), [&] {
    RunRankThreads(4, kBytes, [&](int rank, const std::shared_ptr<SharedArena>& arena) {
      SymmetricMemory memory(arena, rank, {});
      const size_t flag = memory.Allocate(4);
      if (rank == 2) throw Resource("no coal");
      try {
        memory.Wait(flag, 1, 2, "departure");
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kPeer);
        EXPECT_STREQ(error.what(), "rank 2 failed: no coal");
        ++stopped;
        throw;
      }
    });
  });
  EXPECT_EQ(stopped, 3);
}

}  // namespace
}  // namespace switchyard
