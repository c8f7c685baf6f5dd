// The transfer between two servers, without their ranks.
#include <gmock/gmock.h>

#include <thread>

#include "comm/net/authenticated_listener.h"
#include "core/error.h"
#include "server/disaggregation/test_rooms.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The connection of a decode worker, for tests that choose its messages.
class DecodeConnection {
 public:
  DecodeConnection(TransferRig& rig, const char* backend) : stream_(Opened(rig.sender.port())) {
    EXPECT_TRUE(SendMessage(
        stream_, EncodeHello({backend, EncodeStatement(KvStatement(rig.decode.job))}), limit()));
    EXPECT_EQ(DecodeWelcome(ReceiveMessage(stream_, kMost, limit()).value()).refusal, "");
  }
  void Send(const KvMessage& message) {
    EXPECT_TRUE(SendMessage(stream_, EncodeKv(message), limit()));
  }
  // The next message of this type. Others are skipped.
  template <typename Message>
  Message Receive() {
    for (;;) {
      const KvMessage message = DecodeKv(ReceiveMessage(stream_, kMost, limit()).value());
      if (const auto* wanted = std::get_if<Message>(&message)) return *wanted;
    }
  }
  // Returns once the sender has handled all messages so far, and its ranks have the results.
  // `room`: one that no other request has.
  void Flush(TransferRig& rig, uint64_t room) {
    rig.sender.Open(room, rig.Room(room), 16);
    Send(KvFailed{{room, 0}, "flush"});
    EXPECT_EQ(rig.released.Take(room), "flush");
  }

 private:
  static constexpr size_t kMost = size_t{1} << 20;
  static IoLimit limit() { return IoLimit::After(20s); }
  static TcpStream Opened(int port) {
    return OpenAuthenticated({"127.0.0.1", port}, ConnectionKey::Of("", "kv transfer"),
                             {.purpose = Purpose::kKv, .from = 1, .to = 0}, limit())
        .stream.value();
  }

  TcpStream stream_;
};

struct Source {
  const char *fixture, *algorithm = "";
};

TEST(TransferTest, RowsArriveInEveryLayout) {
  constexpr int64_t kEnd = 77;
  // The layers of the third one have rows of different sizes. The last two have a draft model.
  for (const auto& [fixture, algorithm] :
       {Source{"qwen3_moe"}, Source{"deepseek_v2"}, Source{"../families/mimo_v2_flash"},
        Source{"deepseek_v3", "NEXTN"}, Source{"../../../models/yardling", "MTP"}}) {
    for (const char* backend : {"tcp", "shm"}) {
      for (const TransferLayout& layout :
           {TransferLayout{{1, 1}, {1, 1}}, TransferLayout{{2, 1}, {1, 1}},
            TransferLayout{{1, 1}, {2, 1}}, TransferLayout{{.pp = 2}, {1, 1}},
            TransferLayout{{1, 1}, {.tp = 2, .ep = 2, .dp = 2, .pp = 2}, 0, 1},
            TransferLayout{{1, 1}, {2, 2, 2}, 0, 1}, TransferLayout{{2, 2, 2}, {2, 1}, 1, 0}}) {
        SCOPED_TRACE(fmt::format("{} {} {} to {}", fixture, backend, layout.from.tp, layout.to.tp));
        TransferSetup setup = SetupOf(fixture, layout.from, layout.to, backend);
        setup.prefill.algorithm = setup.decode.algorithm = algorithm;
        TransferRig rig(setup);
        const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
        rig.prefill.FillAll(layout.from_group, from, kEnd, 3);
        rig.sender.Open(10, rig.Room(5), kEnd);
        rig.receiver.Open(20, rig.Room(5), kEnd);
        rig.receiver.OnOutput(20, layout.to_group,
                              PagesOutput({.begin = 4, .end = kEnd, .pages = to}));
        // A chunk, then the rest.
        rig.sender.OnOutput(
            10, layout.from_group,
            PagesOutput({.end = 24, .pages = {from.begin(), from.begin() + 3}, .computed = 24}));
        rig.sender.OnOutput(10, layout.from_group, FirstOutput(kEnd, from));
        const auto first = rig.started.Take(20);
        ASSERT_TRUE(first);
        EXPECT_EQ(first->error, "");
        EXPECT_THAT(first->new_tokens, ::testing::ElementsAre(7));
        EXPECT_EQ(first->cached_tokens, 3);
        EXPECT_EQ(rig.released.Take(10), "");
        ExpectSameRows(rig, layout.from_group, from, layout.to_group, to, 4, kEnd);
      }
    }
  }
}

TEST(TransferTest, LayersAreSentWhileThePassRuns) {
  constexpr int64_t kEnd = 40;
  for (const char* backend : {"tcp", "shm"}) {
    SCOPED_TRACE(backend);
    TransferRig rig(SetupOf("qwen3_moe", {2, 1}, {1, 1}, backend));
    const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
    rig.sender.Open(1, rig.Room(5), kEnd);
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
    rig.prefill.Publish(4, 99);  // an earlier pass
    rig.sender.OnOutput(1, 0, PagesOutput({.end = kEnd, .pages = from, .computed = 0, .pass = 5}));
    const int64_t layers = rig.prefill.caches().format().num_layers();
    for (int64_t layer = 0; layer < layers; ++layer) {
      rig.prefill.Fill(0, layer, from, 0, kEnd, 3);
      rig.prefill.Publish(5, layer + 1);
      const auto want = rig.prefill.Read(0, layer, from, 0, kEnd);
      bool same = false;
      for (int i = 0; i < 2000 && !same; ++i) {
        std::this_thread::sleep_for(1ms);
        same = rig.decode.Read(0, layer, to, 0, kEnd) == want;
      }
      EXPECT_TRUE(same) << "layer " << layer << " did not arrive before the next one";
    }
    EXPECT_FALSE(rig.started.Take(2, 0ms));
    rig.sender.OnOutput(1, 0, FirstOutput(kEnd, from));
    ASSERT_TRUE(rig.started.Take(2));
    ExpectSameRows(rig, 0, from, 0, to, 0, kEnd);
  }
}

// Two chunks are in flight: the first stage computes the second one, and the last stage the first
// one.
TEST(TransferTest, RowsOfAStageAreSentWhileAnEarlierStageIsAhead) {
  constexpr int64_t kChunk = 16, kEnd = 40;
  for (const char* backend : {"tcp", "shm"}) {
    SCOPED_TRACE(backend);
    TransferSetup setup = SetupOf("deepseek_v3", {.pp = 2}, {1, 1}, backend);
    setup.prefill.algorithm = setup.decode.algorithm = "NEXTN";
    TransferRig rig(setup);
    const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
    const auto arrives = [&](int64_t layer, int64_t begin, int64_t end) {
      const auto want = rig.prefill.Read(0, layer, from, begin, end);
      for (int i = 0; i < 2000; ++i) {
        if (rig.decode.Read(0, layer, to, begin, end) == want) return true;
        std::this_thread::sleep_for(1ms);
      }
      return false;
    };
    const auto& stages = rig.prefill.job.plan.stages;
    rig.prefill.FillAll(0, from, kEnd, 3);
    rig.sender.Open(1, rig.Room(5), kEnd);
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
    rig.sender.OnOutput(1, 0, PagesOutput({.end = kChunk, .pages = from, .pass = 5}));
    rig.prefill.PublishStage(0, 5, stages[0].size());
    EXPECT_TRUE(arrives(0, 0, kChunk));
    rig.sender.OnOutput(1, 0,
                        PagesOutput({.end = kEnd, .pages = from, .computed = kChunk, .pass = 6}));
    rig.prefill.PublishStage(0, 6, 0);
    rig.prefill.PublishStage(1, 5, stages[1].size());
    EXPECT_TRUE(arrives(stages[1].end - 1, 0, kChunk));
    EXPECT_NE(rig.decode.Read(0, 0, to, kChunk, kEnd), rig.prefill.Read(0, 0, from, kChunk, kEnd));
    rig.prefill.PublishStage(0, 6, stages[0].size());
    rig.prefill.PublishStage(1, 6, 0);  // the rows of the draft model are complete too
    EXPECT_TRUE(arrives(stages[1].end, 0, kChunk));
    EXPECT_TRUE(arrives(0, kChunk, kEnd));
    EXPECT_FALSE(rig.started.Take(2, 0ms));
    rig.sender.OnOutput(1, 0, FirstOutput(kEnd, from));
    ASSERT_TRUE(rig.started.Take(2));
    ExpectSameRows(rig, 0, from, 0, to, 0, kEnd);
  }
}

TEST(TransferTest, PagesThatChangeAreSentAgain) {
  constexpr int64_t kEnd = 40;
  TransferRig rig(SetupOf("qwen3_moe"));
  const auto old = rig.prefill.Pages(kEnd, 1), from = rig.prefill.Pages(kEnd, 9);
  const auto to = rig.decode.Pages(kEnd, 2);
  rig.prefill.FillAll(0, old, kEnd, 3);
  rig.sender.Open(1, rig.Room(5), kEnd);
  rig.receiver.Open(2, rig.Room(5), kEnd);
  rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
  rig.sender.OnOutput(1, 0, PagesOutput({.end = 32, .pages = old, .computed = 32}));
  std::this_thread::sleep_for(20ms);
  rig.prefill.FillAll(0, from, kEnd, 4);
  rig.sender.OnOutput(1, 0, PagesOutput({}));  // retracted
  rig.sender.OnOutput(1, 0, FirstOutput(kEnd, from));
  ASSERT_TRUE(rig.started.Take(2));
  ExpectSameRows(rig, 0, from, 0, to, 0, kEnd);
}

// Ranks with a full cache may give the pages of a prompt to another one until they know that a
// decode worker has asked for it.
TEST(TransferTest, ThePromptIsTakenWhenItsPagesArePinned) {
  constexpr int64_t kEnd = 40;
  for (const bool lost : {false, true}) {
    TransferRig rig(SetupOf("qwen3_moe"));
    const auto old = rig.prefill.Pages(kEnd, 1), from = rig.prefill.Pages(kEnd, 9);
    const auto to = rig.decode.Pages(kEnd, 2);
    rig.prefill.FillAll(0, old, kEnd, 3);
    rig.sender.Open(1, rig.Room(5), kEnd);
    RequestOutput first = FirstOutput(kEnd, old);
    first.kv->pinned = false;
    rig.sender.OnOutput(1, 0, first);
    EXPECT_FALSE(rig.wanted.Take(1, 0ms));
    rig.receiver.Open(2, rig.Room(5), kEnd);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
    EXPECT_TRUE(rig.wanted.Take(1));
    EXPECT_FALSE(rig.started.Take(2, 20ms));
    KvPages pinned{.end = kEnd, .pages = lost ? from : old, .computed = kEnd, .pinned = true};
    if (lost) {
      rig.sender.OnOutput(1, 0, PagesOutput({}));
      rig.sender.OnOutput(1, 0, PagesOutput({.pinned = true}));  // the answer to WantKv
      rig.prefill.FillAll(0, old, kEnd, 7);                      // another request has the pages
      rig.prefill.FillAll(0, from, kEnd, 4);
      EXPECT_FALSE(rig.started.Take(2, 20ms));
    }
    rig.sender.OnOutput(1, 0, PagesOutput(pinned));
    const auto started = rig.started.Take(2);
    ASSERT_TRUE(started);
    EXPECT_THAT(started->new_tokens, ::testing::ElementsAre(7));
    EXPECT_EQ(rig.released.Take(1), "");
    ExpectSameRows(rig, 0, pinned.pages, 0, to, 0, kEnd);
  }
}

TEST(TransferTest, ManyRoomsAtOnce) {
  constexpr int64_t kEnd = 20, kRooms = 24;
  TransferRig rig(SetupOf("qwen3_moe"));
  const auto from = rig.prefill.Pages(kEnd * kRooms * 2, 1), to = rig.decode.Pages(1000, 2);
  const auto pages = [](const std::vector<int32_t>& all, int64_t i, int64_t count) {
    return std::vector<int32_t>(all.begin() + i * count, all.begin() + (i + 1) * count);
  };
  for (int64_t i = 0; i < kRooms; ++i) {
    const auto mine = pages(from, i, 3), theirs = pages(to, i, 5);
    rig.prefill.FillAll(0, mine, kEnd, i);
    // In any order.
    if (i % 2) rig.sender.Open(100 + i, rig.Room(i), kEnd);
    rig.receiver.Open(200 + i, rig.Room(i), kEnd);
    if (i % 3) rig.receiver.OnOutput(200 + i, 0, PagesOutput({.end = kEnd, .pages = theirs}));
    if (i % 2 == 0) rig.sender.Open(100 + i, rig.Room(i), kEnd);
    rig.sender.OnOutput(100 + i, 0, FirstOutput(kEnd, mine, static_cast<int32_t>(i)));
    if (i % 3 == 0) rig.receiver.OnOutput(200 + i, 0, PagesOutput({.end = kEnd, .pages = theirs}));
  }
  for (int64_t i = 0; i < kRooms; ++i) {
    const auto first = rig.started.Take(200 + i);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->new_tokens.at(0), i);
    ExpectSameRows(rig, 0, pages(from, i, 3), 0, pages(to, i, 5), 0, kEnd);
  }
}

TEST(TransferTest, NothingIsWrittenAfterClose) {
  constexpr int64_t kEnd = 40;
  TransferRig rig(SetupOf("qwen3_moe"));
  const auto from = rig.prefill.Pages(kEnd, 1), to = rig.decode.Pages(kEnd, 2);
  for (uint64_t round = 0; round < 30; ++round) {
    rig.prefill.FillAll(0, from, kEnd, round);
    rig.sender.Open(1, rig.Room(round), kEnd);
    rig.receiver.Open(2, rig.Room(round), kEnd);
    rig.receiver.OnOutput(2, 0, PagesOutput({.end = kEnd, .pages = to}));
    rig.sender.OnOutput(1, 0, FirstOutput(kEnd, from));
    std::this_thread::sleep_for(std::chrono::microseconds(round * 30));
    rig.receiver.Close(2, "aborted");
    rig.decode.FillAll(0, to, kEnd, 1000 + round);  // another request has the pages
    const auto want = rig.decode.Read(0, 0, to, 0, kEnd);
    ASSERT_TRUE(rig.released.Take(1));  // either way
    EXPECT_EQ(rig.decode.Read(0, 0, to, 0, kEnd), want);
    rig.sender.Close(1, "");
    rig.started.Take(2, 0ms);
  }
}

TEST(TransferTest, TheEndOfOneSideEndsTheOther) {
  TransferRig rig(SetupOf("qwen3_moe"));
  const auto to = rig.decode.Pages(16, 2);
  const auto open = [&](uint64_t room) {
    rig.sender.Open(room, rig.Room(room), 16);
    rig.receiver.Open(100 + room, rig.Room(room), 16);
    rig.receiver.OnOutput(100 + room, 0, PagesOutput({.end = 16, .pages = to}));
  };
  open(1);
  rig.sender.Close(1, "aborted here");
  EXPECT_EQ(rig.started.Take(101)->error, "aborted here");
  open(2);
  rig.receiver.Close(102, "aborted there");
  EXPECT_EQ(rig.released.Take(2), "aborted there");
  // A refusal, before or after the other side has opened the room.
  rig.sender.Open(3, rig.Room(3), 16);
  rig.receiver.Refuse(rig.Room(3), "the prompt is too long");
  EXPECT_EQ(rig.released.Take(3), "the prompt is too long");
  rig.receiver.Refuse(rig.Room(4), "the prompt is too long");
  std::this_thread::sleep_for(50ms);
  rig.sender.Open(4, rig.Room(4), 16);
  EXPECT_EQ(rig.released.Take(4), "the prompt is too long");
  rig.sender.Refuse(rig.Room(5), "no");
  rig.receiver.Open(105, rig.Room(5), 16);
  rig.receiver.OnOutput(105, 0, PagesOutput({.end = 16, .pages = to}));
  EXPECT_EQ(rig.started.Take(105)->error, "no");
  // The whole server.
  open(7);
  rig.sender.Stop();
  EXPECT_THAT(rig.started.Take(107)->error, HasSubstr("has closed the connection"));
}

TEST(TransferTest, PromptsOfDifferentLengthsFailInBothOrders) {
  TransferRig rig(SetupOf("qwen3_moe"));
  DecodeConnection decode(rig, "tcp");
  const auto pages = rig.prefill.Pages(16, 1);
  for (const bool open_first : {true, false}) {
    for (const int64_t wanted : {15, 17}) {
      SCOPED_TRACE(fmt::format("{} {}", open_first, wanted));
      const uint64_t room = (open_first ? 10 : 20) + wanted % 10;
      if (open_first) rig.sender.Open(room, rig.Room(room), 16);
      decode.Send(KvWant{{room, 0}, wanted, 0});
      decode.Flush(rig, 100 + room);
      if (!open_first) rig.sender.Open(room, rig.Room(room), 16);
      rig.sender.OnOutput(room, 0, FirstOutput(16, pages));
      const auto names_both = HasSubstr(fmt::format(
          "the prompt has 16 tokens on the prefill worker and {} on the decode worker", wanted));
      EXPECT_THAT(decode.Receive<KvFailed>().error, names_both);
      EXPECT_THAT(*rig.released.Take(room), names_both);
    }
  }
}

TEST(TransferTest, RowsAreTakenByTheirDecodeWorkerOnly) {
  TransferRig rig(SetupOf("qwen3_moe", {1, 1}, {1, 1}, "shm"));
  DecodeConnection decode(rig, "shm"), other(rig, "shm");
  rig.sender.Open(1, rig.Room(1), 16);
  decode.Send(KvWant{{1, 0}, 16, 0});
  rig.sender.OnOutput(1, 0, FirstOutput(16, rig.prefill.Pages(16, 1)));
  const KvTaken taken{{1, 0}, decode.Receive<KvPlace>().version};
  other.Send(taken);
  other.Flush(rig, 2);
  EXPECT_FALSE(rig.released.Take(1, 0ms));
  decode.Send(taken);
  decode.Receive<KvDone>();
  EXPECT_EQ(rig.released.Take(1), "");
}

TEST(TransferTest, AnOutputWithoutPagesIsPassedOn) {
  TransferRig rig(SetupOf("qwen3_moe"));
  rig.sender.Open(1, rig.Room(1), 16);
  rig.receiver.Open(2, rig.Room(1), 16);
  RequestOutput ended;
  ended.new_tokens = {3};
  ended.finish = FinishReason::kStop;
  rig.sender.OnOutput(1, 0, ended);
  rig.sender.Close(1, "the request has ended");
  rig.receiver.OnOutput(2, 0, PagesOutput({.end = 16, .pages = rig.decode.Pages(16, 1)}));
  const auto output = rig.started.Take(2);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->finish, FinishReason::kStop);
  EXPECT_EQ(output->error, "");
}

TEST(TransferTest, WaitsHaveDeadlines) {
  TransferSetup setup = SetupOf("qwen3_moe");
  setup.timeout = 300ms;
  TransferRig rig(setup);
  const auto to = rig.decode.Pages(16, 2);
  rig.sender.Open(1, rig.Room(1), 16);
  rig.sender.OnOutput(1, 0, FirstOutput(16, rig.prefill.Pages(16, 1)));
  EXPECT_THAT(*rig.released.Take(1),
              HasSubstr("no decode worker has requested room 1 within 0.3 s"));
  rig.receiver.Open(2, rig.Room(2), 16);
  EXPECT_THAT(rig.started.Take(2)->error, HasSubstr("room 2 got no pages"));
  rig.receiver.Open(3, rig.Room(3), 16);
  rig.receiver.OnOutput(3, 0, PagesOutput({.end = 16, .pages = to}));
  EXPECT_THAT(rig.started.Take(3)->error, HasSubstr("room 3"));
  KvRoom nowhere = rig.Room(4);
  nowhere.port = 1;
  rig.receiver.Open(4, nowhere, 16);
  EXPECT_THAT(rig.started.Take(4)->error,
              ::testing::AnyOf(HasSubstr("does not accept connections"), HasSubstr("no pages")));
}

void ExpectRefused(const TransferSetup& setup, const std::string& message) {
  SCOPED_TRACE(message);
  TransferSetup quick = setup;
  quick.timeout = 400ms;
  TransferRig rig(quick);
  rig.sender.Open(1, rig.Room(1), 16);
  rig.sender.OnOutput(1, 0, FirstOutput(16, rig.prefill.Pages(16, 1)));
  rig.receiver.Open(2, rig.Room(1), 16);
  rig.receiver.OnOutput(2, 0, PagesOutput({.end = 16, .pages = rig.decode.Pages(16, 1)}));
  EXPECT_THAT(rig.started.Take(2)->error, HasSubstr(message));
  EXPECT_THAT(*rig.released.Take(1), HasSubstr(message));
}

TEST(TransferTest, DifferentServersAreRefusedOnBothSides) {
  TransferSetup dtype = SetupOf("qwen3_moe");
  dtype.decode.kv_dtype = "float16";
  ExpectRefused(dtype,
                "the KV cache is 3 layers, 2 heads of 64 + 64 bytes (bfloat16) on the prefill "
                "worker, but 3 layers, 2 heads of 64 + 64 bytes (float16) on the decode worker");
  TransferSetup model = SetupOf("qwen3_moe");
  model.decode.model = TransferFixture("olmoe");
  ExpectRefused(model, "the hash of config.json is ");
  TransferSetup states = SetupOf("../families/qwen3_next");
  states.decode.model = TransferFixture("../families/qwen3_5_moe_text");
  ExpectRefused(states, "the hash of config.json is ");
  TransferSetup backend = SetupOf("qwen3_moe");
  backend.decode_backend = "shm";
  ExpectRefused(backend, "--disaggregation-transfer-backend is tcp on the prefill worker, but shm");
  TransferSetup secret = SetupOf("qwen3_moe");
  secret.secret = "one secret of many bytes";
  secret.decode_secret = "another secret of many bytes";
  ExpectRefused(secret, "different secrets");
}

}  // namespace
}  // namespace switchyard
