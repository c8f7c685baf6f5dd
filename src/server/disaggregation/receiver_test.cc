// The decode worker's side of the transfer, with a prefill worker that sends what the test chooses.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "comm/net/authenticated_listener.h"
#include "core/error.h"
#include "server/disaggregation/test_rooms.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int64_t kEnd = 16;

// A decode worker with one request in room 1, which has pages and, if `state` is not −1, a slot.
class DecodeWorker {
 public:
  explicit DecodeWorker(const char* fixture, const char* backend = "tcp", int32_t state = -1)
      : rig(SetupOf(fixture, {1, 1}, {1, 1}, backend)), listener_(TcpListener::Bind({kHost, 0})) {
    rig.receiver.Open(2, Room(1), kEnd);
    Accept();
    RequestOutput pages = PagesOutput({.end = kEnd, .pages = rig.decode.Pages(kEnd, 2)});
    pages.kv->state = state;
    rig.receiver.OnOutput(2, 0, pages);
  }
  KvRoom Room(uint64_t room) const { return {{room, 0}, kHost, listener_.address().port}; }
  // The receiver may have closed the connection because of an earlier message.
  void Send(const KvMessage& message) { SendMessage(*stream_, EncodeKv(message), limit()); }
  void SendState(int64_t layer) {
    const int64_t count = rig.decode.caches().format().layers[layer].StateBytes();
    std::vector<char> bytes(static_cast<size_t>(count));
    Send(KvStateHead{{1, 0}, layer});
    iovec part{bytes.data(), bytes.size()};
    EXPECT_EQ(stream_->Send({&part, 1}, limit()), IoResult::kDone);
  }
  void SendDone(FinishReason finish = FinishReason::kNone) {
    StepOutputs step;
    step.outputs.emplace_back().new_tokens = {7};
    step.outputs[0].finish = finish;
    Send(KvDone{{1, 0}, EncodeMessage(step)});
  }
  // Sends the memory of the prefill side, as if its ranks had this job.
  void SendArena(const RankJob& job) {
    Send(KvArena{getpid(), rig.prefill.arena->fd(), EncodeRankSpec(job.config, job.plan)});
  }
  // The error of the request; empty: it starts.
  std::string Error() {
    const auto output = rig.started.Take(2);
    return output ? output->error : "no output";
  }

  TransferRig rig;

 private:
  static constexpr const char* kHost = "127.0.0.1";
  static IoLimit limit() { return IoLimit::After(20s); }
  void Accept() {
    AuthenticatedListener listener(listener_, {.key = ConnectionKey::Of("", "kv transfer"),
                                               .purpose = Purpose::kKv,
                                               .self = 0,
                                               .message_limit = size_t{1} << 20});
    auto arrival = listener.Accept(limit());
    ASSERT_TRUE(arrival);
    stream_.emplace(std::move(arrival->stream));
    EXPECT_TRUE(SendMessage(*stream_, EncodeWelcome({}), limit()));
  }

  TcpListener listener_;
  std::optional<TcpStream> stream_;
};

TEST(ReceiverTest, TimeLimitsDoNotRunDuringAPause) {
  TransferSetup setup = SetupOf("qwen3_moe");
  setup.timeout = 500ms;
  TransferRig rig(setup);
  rig.sender.SetPaused(true);
  rig.receiver.SetPaused(true);
  rig.sender.Open(1, rig.Room(1), kEnd);
  rig.sender.OnOutput(1, 0, FirstOutput(kEnd, rig.prefill.Pages(kEnd, 1)));
  rig.receiver.Open(2, rig.Room(2), kEnd);
  EXPECT_FALSE(rig.started.Take(2, 800ms));
  EXPECT_FALSE(rig.released.Take(1, 0ms));
  rig.sender.SetPaused(false);
  rig.receiver.SetPaused(false);
  EXPECT_THAT(rig.started.Take(2)->error, HasSubstr("room 2 got no pages"));
  EXPECT_THAT(*rig.released.Take(1), HasSubstr("no decode worker has requested room 1"));
}

TEST(ReceiverTest, ARunningTimeLacksThePauses) {
  RunningTime time;
  const auto begin = time.Now();
  EXPECT_LE(begin, time.Now());
  time.SetPaused(true);
  const auto stopped = time.Now();
  std::this_thread::sleep_for(20ms);
  time.SetPaused(true);  // has no effect
  EXPECT_EQ(time.Now(), stopped);
  const auto real = std::chrono::steady_clock::now();
  time.SetPaused(false);
  const auto later = time.Now();  // before the other clock is read
  EXPECT_GE(later, stopped);
  EXPECT_LE(later - stopped, std::chrono::steady_clock::now() - real);
}

// Layers 0 to 2 have states.
TEST(ReceiverTest, ARequestStartsOnlyWithTheStatesOfAllLayers) {
  const char* const fixture = "../families/qwen3_next";
  for (int64_t layers = 0; layers <= 3; ++layers) {
    DecodeWorker decode(fixture, "tcp", 1);
    for (int64_t layer = 0; layer < layers; ++layer) decode.SendState(layer);
    decode.SendDone();
    const std::string error = decode.Error();
    if (layers == 3) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_THAT(error, HasSubstr(fmt::format("has sent no recurrent state of layer {} for room 1",
                                               layers)));
    }
  }
  DecodeWorker ended(fixture, "tcp", 1);
  ended.SendDone(FinishReason::kStop);
  EXPECT_EQ(ended.Error(), "");
}

TEST(ReceiverTest, AStateThatNoLayerHasEndsTheConnection) {
  for (const int64_t layer : {int64_t{-1}, int64_t{3}, int64_t{1} << 40}) {
    DecodeWorker decode("../families/qwen3_next", "tcp", 1);
    decode.Send(KvStateHead{{1, 0}, layer});
    EXPECT_THAT(decode.Error(), HasSubstr(fmt::format("state of layer {}, which has none", layer)));
  }
}

// The memory of a prefill worker is read as its job describes it.
TEST(ReceiverTest, MemoryThatDoesNotFitItsJobIsRefused) {
  const auto error = [](const std::function<void(RankJob*)>& change) {
    DecodeWorker decode("qwen3_moe", "shm");
    RankJob job = decode.rig.prefill.job;
    change(&job);
    decode.SendArena(job);
    decode.Send(KvPlace{
        .key = {1, 0}, .end = kEnd, .end_layer = 3, .pages = decode.rig.prefill.Pages(kEnd, 1)});
    decode.SendDone();
    return decode.Error();
  };
  EXPECT_EQ(error([](RankJob*) {}), "");
  EXPECT_THAT(error([](RankJob* job) { job->plan.kv_dtype = DType::kF16; }),
              HasSubstr("the KV cache is 3 layers"));
  EXPECT_THAT(error([](RankJob* job) { job->plan.num_pages *= 2; }),
              HasSubstr("bytes of memory for each rank, but its caches need"));
  EXPECT_THAT(error([](RankJob* job) {
                job->config.mesh = {2, 1};
              }),
              HasSubstr("has 2 ranks, but its memory has 1"));
  EXPECT_THAT(error([](RankJob* job) { job->config.mesh.dp = 3; }), HasSubstr("--dp-size 3"));
  EXPECT_THAT(error([](RankJob* job) { job->config.page_size = 0; }),
              HasSubstr("is not that of a prefill worker"));
  EXPECT_THAT(error([](RankJob* job) { job->config.disaggregation_mode.clear(); }),
              HasSubstr("is not that of a prefill worker"));
}

TEST(ReceiverTest, TheTokensOfDraftsMayDiffer) {
  const RankJob job = JobOf({.model = TransferFixture("qwen3_moe")}, "prefill");
  RankJob other = job;
  other.config.speculative.token_map = TransferFixture("qwen3_moe") / "config.json";  // any file
  EXPECT_NE(EngineStatement(job.config), EngineStatement(other.config));
  EXPECT_EQ(KvStatement(job), KvStatement(other));
}

}  // namespace
}  // namespace switchyard
