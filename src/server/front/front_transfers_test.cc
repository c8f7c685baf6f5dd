// Requests that two servers compute.
#include <gmock/gmock.h>

#include "core/error.h"
#include "server/front/test_service.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordingTransfers : public KvTransfers {
 public:
  KvRole role() const override { return KvRole::kImport; }
  void Open(uint64_t id, const KvRoom&, int64_t) override { opened.push_back(id); }
  void OnOutput(uint64_t, int, const RequestOutput&) override {}
  void Close(uint64_t id, const std::string&) override { closed.push_back(id); }
  void Refuse(const KvRoom&, const std::string& why) override { refusals.push_back(why); }
  void SetPaused(bool paused) override { pauses.push_back(paused); }

  std::vector<uint64_t> opened, closed;
  std::vector<std::string> refusals;
  std::vector<bool> pauses;
};

class FrontTransfersTest : public ::testing::Test {
 protected:
  FrontTransfersTest() { service.front.Use(&transfers); }
  static GenerationSpec Spec() {
    GenerationSpec spec;
    spec.input_ids = {5, 6, 7};
    spec.kv = KvRoom{.key = {17, 0}, .host = "127.0.0.1", .port = 1};
    return spec;
  }
  uint64_t Submit(GenerationSpec spec) {
    return service.front.Submit(std::move(spec),
                                [this](const GenerationEvent& e) { events.push_back(e); });
  }

  RecordingTransfers transfers;
  TestService service{"qwen3_moe"};
  std::vector<GenerationEvent> events;
};

TEST_F(FrontTransfersTest, TheOtherServerGetsARefusalOnce) {
  GenerationSpec spec = Spec();
  spec.input_ids.clear();
  EXPECT_THROW(Submit(spec), Error);
  EXPECT_THAT(transfers.refusals, ElementsAre(HasSubstr("is empty")));
  transfers.refusals.clear();
  EXPECT_THROW(service.front.Check(spec), Error);
  EXPECT_THAT(transfers.refusals, ElementsAre(HasSubstr("is empty")));
  transfers.refusals.clear();
  service.front.StartDraining();
  EXPECT_THROW(Submit(Spec()), Error);
  EXPECT_THAT(transfers.refusals, ElementsAre(HasSubstr("shutting down")));
  EXPECT_TRUE(transfers.opened.empty());
}

TEST_F(FrontTransfersTest, TransfersArePausedWithGeneration) {
  for (const bool paused : {true, true, false, false, true})
    service.front.ChangeControls([&](EngineControls* c) { c->paused = paused; }, PauseAction::kNone,
                                 [](bool, const ControlsSet&) {});
  EXPECT_THAT(transfers.pauses, ElementsAre(true, false, true));
}

// The router retries on this kind of error. The request did not exceed a time limit of the front.
TEST_F(FrontTransfersTest, AFailedTransferIsCountedAsAnError) {
  using metrics::End;
  service.link.answer = {.finish = FinishReason::kError,
                         .error = "no rows came",
                         .error_kind = ErrorKind::kUnavailable};
  const uint64_t id = Submit(Spec());
  EXPECT_THAT(transfers.opened, ElementsAre(id));
  EXPECT_THAT(transfers.closed, ElementsAre(id));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].error_kind, ErrorKind::kUnavailable);
  const metrics::RequestMetrics& counted = service.front.request_metrics();
  EXPECT_EQ(counted.ended(End::kError), 1u);
  EXPECT_EQ(counted.ended(End::kTimeout), 0u);
}

}  // namespace
}  // namespace switchyard
