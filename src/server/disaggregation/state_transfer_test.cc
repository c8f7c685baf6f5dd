// The transfer of recurrent states between two servers, without their ranks.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"
#include "server/disaggregation/test_rooms.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

RequestOutput WithState(RequestOutput output, int32_t slot) {
  output.kv->state = slot;
  return output;
}

TEST(StateTransferTest, StatesFollowTheRowsInEveryLayout) {
  constexpr int64_t kEnd = 21;
  constexpr int32_t kFrom = 3, kTo = 6;
  for (const char* fixture :
       {"../families/qwen3_next", "../families/kimi_linear", "../families/nemotron_h",
        "../families/bailing_moe_v2_5", "../families/deepseek_v4"}) {
    for (const char* backend : {"tcp", "shm"}) {
      for (const TransferLayout& layout :
           {TransferLayout{{1, 1}, {1, 1}}, TransferLayout{{2, 1}, {1, 1}},
            TransferLayout{{1, 1}, {2, 1}}, TransferLayout{{.pp = 2}, {2, 2, 2}, 0, 1},
            TransferLayout{{2, 2, 2}, {.pp = 3}, 1, 0}}) {
        SCOPED_TRACE(fmt::format("{} {} {} to {}", fixture, backend, layout.from.tp, layout.to.tp));
        TransferRig rig(SetupOf(fixture, layout.from, layout.to, backend));
        const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
        rig.prefill.FillAll(layout.from_group, from, kEnd, 3);
        rig.prefill.FillStates(layout.from_group, kFrom, 4);
        rig.decode.FillStates(layout.to_group, kTo + 1, 5);
        const auto other = rig.decode.ReadStates(layout.to_group, kTo + 1);
        rig.sender.Open(1, rig.Room(5), kEnd);
        rig.receiver.Open(2, rig.Room(5), kEnd);
        rig.receiver.OnOutput(2, layout.to_group,
                              WithState(PagesOutput({.end = kEnd, .pages = to}), kTo));
        rig.sender.OnOutput(1, layout.from_group,
                            PagesOutput({.end = 8, .pages = {from[0]}, .computed = 8}));
        rig.sender.OnOutput(1, layout.from_group, WithState(FirstOutput(kEnd, from), kFrom));
        const auto first = rig.started.Take(2);
        ASSERT_TRUE(first);
        EXPECT_EQ(first->error, "");
        ExpectSameRows(rig, layout.from_group, from, layout.to_group, to, 0, kEnd);
        EXPECT_EQ(rig.decode.ReadStates(layout.to_group, kTo),
                  rig.prefill.ReadStates(layout.from_group, kFrom));
        EXPECT_EQ(rig.decode.ReadStates(layout.to_group, kTo + 1), other);
      }
    }
  }
}

// Adjacent rows share the place of an entry, which is complete only after the last one of them.
TEST(StateTransferTest, RowsThatSharePlacesOfEntriesAreSentAgain) {
  constexpr int64_t kEnd = 21;
  for (const char* backend : {"tcp", "shm"}) {
    TransferRig rig(SetupOf("../families/deepseek_v4", {1, 1}, {1, 1}, backend));
    const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
    rig.prefill.FillAll(0, from, kEnd, 3);
    rig.prefill.FillStates(0, 3, 4);
    rig.sender.Open(1, rig.Room(5), kEnd);
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(2, 0, WithState(PagesOutput({.end = kEnd, .pages = to}), 6));
    rig.sender.OnOutput(1, 0,
                        PagesOutput({.end = 14, .pages = {from[0], from[1]}, .computed = 14}));
    const int64_t last = rig.prefill.caches().format().num_layers() - 1;
    for (int wait = 0; wait < 2000 && rig.prefill.Read(0, last, from, 0, 14) !=
                                          rig.decode.Read(0, last, to, 0, 14);
         ++wait)
      std::this_thread::sleep_for(10ms);
    ExpectSameRows(rig, 0, from, 0, to, 0, 14);
    // The next pass ends the block of rows 12 to 15.
    for (int64_t layer = 0; layer <= last; ++layer) rig.prefill.Fill(0, layer, from, 12, 16, 9);
    rig.sender.OnOutput(1, 0, WithState(FirstOutput(kEnd, from), 3));
    const auto first = rig.started.Take(2);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->error, "");
    ExpectSameRows(rig, 0, from, 0, to, 0, kEnd);
    EXPECT_EQ(rig.decode.ReadStates(0, 6), rig.prefill.ReadStates(0, 3));
  }
}

// The decode worker has the state at the end of the prompt, or the prompt is computed again.
TEST(StateTransferTest, StatesAreSentOnlyWhereTheyAreNeeded) {
  constexpr int64_t kEnd = 16;
  TransferRig rig(SetupOf("../families/qwen3_next"));
  const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
  rig.sender.Open(1, rig.Room(5), kEnd);
  rig.receiver.Open(2, rig.Room(5), kEnd);
  rig.receiver.OnOutput(2, 0, PagesOutput({.begin = kEnd, .end = kEnd, .pages = to}));
  rig.sender.OnOutput(1, 0, WithState(FirstOutput(kEnd, from), 3));
  EXPECT_EQ(rig.started.Take(2)->error, "");

  rig.sender.Open(11, rig.Room(6), kEnd);
  rig.receiver.Open(12, rig.Room(6), kEnd);
  rig.receiver.OnOutput(12, 0, WithState(PagesOutput({.end = kEnd, .pages = to}), 2));
  rig.prefill.FillAll(0, from, kEnd, 3);
  rig.prefill.FillStates(0, 3, 4);
  RequestOutput first = WithState(FirstOutput(kEnd, from), 3);
  first.kv->pinned = false;
  rig.sender.OnOutput(11, 0, first);
  EXPECT_FALSE(rig.started.Take(12, 20ms));
  rig.sender.OnOutput(11, 0, PagesOutput({}));
  rig.prefill.FillStates(0, 3, 5);  // another request has the slot
  rig.prefill.FillStates(0, 1, 6);
  RequestOutput again = PagesOutput({.end = kEnd, .pages = from, .computed = kEnd, .pinned = true});
  rig.sender.OnOutput(11, 0, WithState(again, 1));
  ASSERT_TRUE(rig.started.Take(12));
  EXPECT_EQ(rig.decode.ReadStates(0, 2), rig.prefill.ReadStates(0, 1));
}

TEST(StateTransferTest, WrongSlotsEndTheConnection) {
  constexpr int64_t kEnd = 16;
  for (const char* backend : {"tcp", "shm"}) {
    TransferRig rig(SetupOf("../families/qwen3_next", {1, 1}, {1, 1}, backend));
    rig.sender.Open(1, rig.Room(5), kEnd);
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(
        2, 0, WithState(PagesOutput({.end = kEnd, .pages = rig.decode.Pages(kEnd, 2)}), 1));
    rig.sender.OnOutput(1, 0, WithState(FirstOutput(kEnd, rig.prefill.Pages(kEnd, 1)), 100000));
    EXPECT_THAT(rig.started.Take(2)->error,
                ::testing::AnyOf(HasSubstr("slot 100000 is not one of the"),
                                 HasSubstr("has closed the connection")));
    EXPECT_NE(*rig.released.Take(1), "");
  }
}

TEST(StateTransferTest, TheFormatStatesTheSizesOfStates) {
  const RankJob here = JobOf({.model = TransferFixture("../families/qwen3_next")}, "prefill");
  RankJob other = here;
  other.plan.model.linear->key_dim *= 2;
  // For a key head: 3 inputs of 2 · 16 + 20 channels, and 20 · 16 floats of its value heads.
  try {
    CheckSame(KvStatement(here), KvStatement(other), "the prefill worker", "the decode worker");
    FAIL() << "different states are accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("the KV cache is 3 layers, states of 2 heads of 1904 bytes, then "
                                "1 layer, 2 heads of"),
                      HasSubstr("3 layers, states of 2 heads of 3568 bytes, then")));
  }
}

}  // namespace
}  // namespace switchyard
