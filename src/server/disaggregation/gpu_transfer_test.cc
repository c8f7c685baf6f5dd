// The transfer between two servers whose ranks export memory, as on GPUs, without ranks or GPUs.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"
#include "server/disaggregation/test_rooms.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TransferSetup GpuSetupOf(const char* fixture, MeshShape from = {1, 1}, MeshShape to = {1, 1},
                         const char* backend = "shm") {
  TransferSetup setup = SetupOf(fixture, from, to, backend);
  setup.prefill.gpus = setup.decode.gpus = true;
  return setup;
}

// Sends a prompt in two chunks, with the states in slots `from_slot` and `to_slot`; −1: none.
void ExpectTransfer(TransferRig& rig, const TransferLayout& layout, int64_t end, int32_t from_slot,
                    int32_t to_slot, uint64_t room = 5) {
  const auto from = rig.prefill.Pages(end, room), to = rig.decode.Pages(end, room + 1);
  rig.prefill.FillAll(layout.from_group, from, end, room + 2);
  rig.sender.Open(1, rig.Room(room), end);
  rig.receiver.Open(2, rig.Room(room), end);
  RequestOutput pages = PagesOutput({.begin = 4, .end = end, .pages = to});
  pages.kv->state = to_slot;
  rig.receiver.OnOutput(2, layout.to_group, pages);
  rig.sender.OnOutput(
      1, layout.from_group,
      PagesOutput({.end = 16, .pages = {from.begin(), from.begin() + 2}, .computed = 16}));
  RequestOutput first = FirstOutput(end, from);
  first.kv->state = from_slot;
  rig.sender.OnOutput(1, layout.from_group, first);
  const auto started = rig.started.Take(2);
  ASSERT_TRUE(started);
  EXPECT_EQ(started->error, "");
  EXPECT_EQ(rig.released.Take(1), "");
  ExpectSameRows(rig, layout.from_group, from, layout.to_group, to, 4, end);
  rig.receiver.Close(2, "");
  rig.sender.Close(1, "");
}

TEST(GpuTransferTest, RowsAndStatesArriveInEveryLayout) {
  constexpr int32_t kFrom = 3, kTo = 6;
  for (const char* fixture :
       {"qwen3_moe", "deepseek_v2", "../families/qwen3_next", "../families/deepseek_v4"}) {
    for (const char* backend : {"tcp", "shm"}) {
      for (const TransferLayout& layout :
           {TransferLayout{{1, 1}, {1, 1}}, TransferLayout{{2, 1}, {1, 1}},
            TransferLayout{{1, 1}, {2, 1}}, TransferLayout{{1, 1}, {2, 2, 2}, 0, 1},
            TransferLayout{{2, 2, 2}, {2, 1}, 1, 0}}) {
        SCOPED_TRACE(fmt::format("{} {} {} to {}", fixture, backend, layout.from.tp, layout.to.tp));
        TransferRig rig(GpuSetupOf(fixture, layout.from, layout.to, backend));
        const bool states = rig.prefill.caches().format().has_states();
        if (states) rig.prefill.FillStates(layout.from_group, kFrom, 4);
        ExpectTransfer(rig, layout, 45, states ? kFrom : -1, states ? kTo : -1);
        if (states) {
          EXPECT_EQ(rig.decode.ReadStates(layout.to_group, kTo),
                    rig.prefill.ReadStates(layout.from_group, kFrom));
        }
        EXPECT_GT(rig.decode.mover->copies.load(), 0);
        EXPECT_EQ(rig.prefill.mover->copies.load() > 0, std::string(backend) == "tcp");
      }
    }
  }
}

// The decode worker cannot map the memory of the prefill worker.
TEST(GpuTransferTest, RowsGoThroughHostMemoryWithoutPeerAccess) {
  TransferRig rig(GpuSetupOf("qwen3_moe", {2, 1}, {1, 1}));
  rig.decode.mover->RefuseIf([&](const KvExport& memory) { return rig.prefill.Owns(memory); });
  for (uint64_t room = 5; room < 30; room += 5)
    ExpectTransfer(rig, {{2, 1}, {1, 1}}, 45, -1, -1, room);
  EXPECT_GT(rig.prefill.mover->copies.load(), 0);
  EXPECT_GT(rig.decode.mover->buffers.load(), 0);
}

TEST(GpuTransferTest, LayersAreCopiedWhileThePassRuns) {
  constexpr int64_t kEnd = 40;
  for (const char* backend : {"tcp", "shm"}) {
    SCOPED_TRACE(backend);
    TransferRig rig(GpuSetupOf("qwen3_moe", {2, 1}, {1, 1}, backend));
    const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
    rig.sender.Open(1, rig.Room(5), kEnd);
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
    rig.sender.OnOutput(1, 0, PagesOutput({.end = kEnd, .pages = from, .computed = 0, .pass = 5}));
    rig.prefill.Fill(0, 0, from, 0, kEnd, 3);
    const auto want = rig.prefill.Read(0, 0, from, 0, kEnd);
    std::this_thread::sleep_for(20ms);
    EXPECT_NE(rig.decode.Read(0, 0, to, 0, kEnd), want);
    rig.prefill.Publish(5, 1);
    for (int i = 0; i < 2000 && rig.decode.Read(0, 0, to, 0, kEnd) != want; ++i)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(rig.decode.Read(0, 0, to, 0, kEnd), want);
    rig.prefill.FillAll(0, from, kEnd, 3);
    rig.sender.OnOutput(1, 0, FirstOutput(kEnd, from));
    ASSERT_TRUE(rig.started.Take(2));
    ExpectSameRows(rig, 0, from, 0, to, 0, kEnd);
  }
}

// A worker that cannot reach the memory of its own ranks ends the request on both sides.
TEST(GpuTransferTest, UnreachableRanksEndTheRequestOnBothSides) {
  for (const bool of_decode : {false, true}) {
    SCOPED_TRACE(of_decode);
    TransferSetup setup = GpuSetupOf("qwen3_moe", {1, 1}, {1, 1}, "tcp");
    TransferRig rig(setup);
    Side& side = of_decode ? rig.decode : rig.prefill;
    side.mover->RefuseIf([](const KvExport&) { return true; });
    // The memory of the next epoch.
    if (of_decode) {
      rig.receiver.Use(side.arena);
    } else {
      rig.sender.Use(side.arena);
    }
    KvExportSlot(side.arena->Kept(0))
        .Set({.address = reinterpret_cast<uint64_t>(side.memory[0].get()),
              .bytes = ExportedCaches::Bytes(side.job.config, side.job.plan,
                                             Mesh(side.job.config.mesh, 0))});
    rig.sender.Open(1, rig.Room(1), 16);
    rig.sender.OnOutput(1, 0, FirstOutput(16, rig.prefill.Pages(16, 1)));
    rig.receiver.Open(2, rig.Room(1), 16);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = 16, .pages = rig.decode.Pages(16, 1)}));
    EXPECT_THAT(rig.started.Take(2)->error, HasSubstr("the memory has no peer access"));
    EXPECT_THAT(*rig.released.Take(1), HasSubstr("the memory has no peer access"));
  }
}

// The connection remains: later requests are sent once there is memory.
TEST(GpuTransferTest, WithoutMemoryForRowsTheRequestEndsOnBothSides) {
  for (const bool of_decode : {false, true}) {
    SCOPED_TRACE(of_decode);
    TransferRig rig(GpuSetupOf("qwen3_moe", {1, 1}, {2, 1}, "tcp"));
    FakeMover& mover = *(of_decode ? rig.decode : rig.prefill).mover;
    mover.full = true;
    for (uint64_t room = 1; room < 4; ++room) {
      // The first token is not sampled yet, so the prefill worker still has the request.
      rig.sender.Open(1, rig.Room(room), 16);
      rig.sender.OnOutput(
          1, 0, PagesOutput({.end = 16, .pages = rig.prefill.Pages(16, 1), .computed = 16}));
      rig.receiver.Open(2, rig.Room(room), 16);
      rig.receiver.OnOutput(2, 0, PagesOutput({.end = 16, .pages = rig.decode.Pages(16, 1)}));
      const auto started = rig.started.Take(2);
      ASSERT_TRUE(started);
      EXPECT_EQ(started->finish, FinishReason::kError);
      EXPECT_THAT(started->error, HasSubstr(fmt::format("the {} worker has no memory for ",
                                                        of_decode ? "decode" : "prefill")));
      EXPECT_THAT(started->error, HasSubstr("page-locked memory is full"));
      EXPECT_EQ(rig.released.Take(1), started->error);
      rig.receiver.Close(2, "");
      rig.sender.Close(1, "");
    }
    mover.full = false;
    ExpectTransfer(rig, {{1, 1}, {2, 1}}, 45, -1, -1, 9);
  }
}

// Memory that other processes map is freed only when they unmap it.
TEST(GpuTransferTest, MemoryOfEndedRanksIsUnmapped) {
  TransferRig rig(GpuSetupOf("qwen3_moe"));
  ExpectTransfer(rig, {{1, 1}, {1, 1}}, 45, -1, -1);
  EXPECT_EQ(rig.decode.mover->mapped.load(),
            3);  // by this test, by the receiver, and of the prefill side
  rig.receiver.Use(rig.decode.arena);
  EXPECT_EQ(rig.decode.mover->mapped.load(), 2);
  rig.sender.Stop();
  for (int i = 0; i < 2000 && rig.decode.mover->mapped.load() > 1; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(rig.decode.mover->mapped.load(), 1);
}

TEST(GpuTransferTest, CpusAndGpusAreRefusedOnBothSides) {
  TransferSetup setup = SetupOf("qwen3_moe");
  setup.prefill.gpus = true;
  setup.timeout = 400ms;
  TransferRig rig(setup);
  rig.sender.Open(1, rig.Room(1), 16);
  rig.sender.OnOutput(1, 0, FirstOutput(16, rig.prefill.Pages(16, 1)));
  rig.receiver.Open(2, rig.Room(1), 16);
  rig.receiver.OnOutput(2, 0, PagesOutput({.end = 16, .pages = rig.decode.Pages(16, 1)}));
  const auto names_both =
      HasSubstr("--device is cuda on the prefill worker, but cpu on the decode worker");
  EXPECT_THAT(rig.started.Take(2)->error, names_both);
  EXPECT_THAT(*rig.released.Take(1), names_both);
}

}  // namespace
}  // namespace switchyard
