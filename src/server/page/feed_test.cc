#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "server/api/json_body.h"
#include "server/front/test_service.h"
#include "server/http/exchange.h"
#include "server/page/page.h"
#include "server/page/snapshot.h"

namespace switchyard::page {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<http::Exchange> NewExchange() {
  return std::make_shared<http::Exchange>(http::Exchange::Options{}, nullptr);
}

// Waits until the condition holds. The test's time limit ends a wait without end.
template <typename Condition>
void Await(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(milliseconds(1));
}

TEST(FeedTest, MakesNothingWithoutListeners) {
  std::atomic<int> made = 0;
  Feed feed([&](bool) { return std::to_string(++made); }, {.interval = milliseconds(1)});
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(made, 0);
  const auto exchange = NewExchange();
  EXPECT_TRUE(feed.Add(http::Responder(exchange)));
  Await([&] { return made >= 3; });
  exchange->Close();  // the client disconnects
  Await([&] { return feed.listeners() == 0; });
  const int before = made;
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(made, before);
}

TEST(FeedTest, OnlyTheFirstSnapshotOfAListenerIsWhole) {
  std::atomic<int> whole = 0, made = 0;
  Feed feed(
      [&](bool is_whole) {
        ++made;
        if (is_whole) ++whole;
        return "{}";
      },
      {.interval = milliseconds(1)});
  feed.Add(http::Responder(NewExchange()));
  Await([&] { return made >= 4; });
  EXPECT_EQ(whole, 1);
  feed.Add(http::Responder(NewExchange()));
  Await([&] { return whole == 2; });
}

TEST(FeedTest, DropsAListenerThatDoesNotRead) {
  const std::string large(8 << 10, 'x');
  const auto slow = NewExchange(), fast = NewExchange();
  std::atomic<size_t> received = 0;
  Feed feed(
      [&](bool) {
        // Reads before each event, so that the test thread's speed does not matter. The second call
        // reports that the first one's bytes were sent.
        received += fast->Take().bytes.size();
        received += fast->Take().bytes.size();
        return large;
      },
      {.interval = milliseconds(1), .max_skipped = 3});
  feed.Add(http::Responder(slow));
  feed.Add(http::Responder(fast));
  Await([&] { return feed.listeners() == 1 && received > 2 * large.size(); });
  const http::Exchange::Output output = slow->Take();
  EXPECT_EQ(output.state, http::Exchange::State::kCut);
  EXPECT_LT(output.bytes.size(), 2 * large.size());  // one snapshot
}

TEST(FeedTest, ContinuesAfterAFailedSnapshot) {
  std::atomic<int> made = 0;
  Feed feed(
      [&](bool) -> std::string {
        if (++made == 1) throw std::runtime_error("no");
        return "{}";
      },
      {.interval = milliseconds(1)});
  const auto exchange = NewExchange();
  feed.Add(http::Responder(exchange));
  Await([&] { return feed.snapshots() >= 2; });
  EXPECT_EQ(feed.listeners(), 1u);
}

// Answers the queries of a snapshot.
struct QueriedLink : RankLink {
  void Send(const std::vector<ControlMessage>& messages) override {
    for (const ControlMessage& message : messages) {
      if (const auto* stats = std::get_if<GetStats>(&message))
        front->OnMessage(StatsReport{.ticket = stats->ticket,
                                     .groups = {{.running = 2, .waiting = 1, .total_pages = 9}}});
      if (const auto* query = std::get_if<GetExpertLoad>(&message))
        front->OnMessage(ExpertLoadReport{.ticket = query->ticket, .load = load});
      if (const auto* query = std::get_if<GetEplb>(&message)) {
        asked_slots.push_back(query->slots);
        EplbReport report{.ticket = query->ticket, .status = eplb};
        if (query->slots) report.slots.assign(slots, 0);
        front->OnMessage(report);
      }
    }
  }
  Front* front = nullptr;
  size_t slots = 0;
  ExpertLoad load{.layers = 1,
                  .experts = 2,
                  .ranks = 1,
                  .passes = 5,
                  .rank_count = {7},
                  .logical_count = {3, 4},
                  .stage_times = {20, 30, 40},
                  .timed_passes = 4};
  EplbStatus eplb;
  std::vector<bool> asked_slots;
};

TEST(SnapshotTest, HasTheStateOfTheRanks) {
  TestService world({.engine = {.model_path = SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe",
                                .recorder = {.metrics = true}}},
                    512);
  QueriedLink link;
  Front front(link, *world.model.tokenizer, {.vocab_size = 8, .context_length = 512});
  link.front = &front;
  Service service{front, world.model, world.args, world.plan};
  service.ready = true;
  Snapshots snapshots(service);
  const Json first = Json::parse(snapshots.Make(true));
  EXPECT_EQ(first["state"], "ready");
  EXPECT_EQ(first["groups"][0]["running_requests"], 2);
  EXPECT_EQ(first["experts"]["logical_count"], Json({3, 4}));
  EXPECT_EQ(first["experts"]["passes"], 5);
  EXPECT_EQ(first["experts"]["stage_times"], Json({20, 30, 40}));
  EXPECT_EQ(first["experts"]["timed_passes"], 4);
  EXPECT_EQ(first["first_token"]["counts"].size(), first["first_token"]["bounds"].size() + 1);
  EXPECT_EQ(first["eplb"], nullptr);
  // Counts are sent again only if there was a pass, or to a new listener.
  EXPECT_FALSE(Json::parse(snapshots.Make(false))["experts"].contains("logical_count"));
  EXPECT_TRUE(Json::parse(snapshots.Make(true))["experts"].contains("logical_count"));
  link.load.passes = 6;
  EXPECT_TRUE(Json::parse(snapshots.Make(false))["experts"].contains("logical_count"));
  front.OnRanksLost("a rank ended");
  EXPECT_EQ(Json::parse(snapshots.Make(true))["state"], "lost");
}

TEST(SnapshotTest, SendsThePlacementAfterAMove) {
  TestService world({.engine = {.model_path = SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe",
                                .eplb = {.enable = true}}},
                    512);
  QueriedLink link;
  link.slots = static_cast<size_t>(world.plan.model.num_layers()) * 18;
  Front front(link, *world.model.tokenizer, {.vocab_size = 8, .context_length = 512});
  link.front = &front;
  Service service{front, world.model, world.args, world.plan};
  service.ready = true;
  Snapshots snapshots(service);
  const auto has_placement = [&](bool whole) {
    return Json::parse(snapshots.Make(whole))["eplb"].contains("placement");
  };
  const Json placement = Json::parse(snapshots.Make(true))["eplb"]["placement"];
  EXPECT_EQ(placement["slots_of_ranks"], Json({18}));
  EXPECT_EQ(placement["layers"].size(), static_cast<size_t>(world.plan.model.num_layers()));
  EXPECT_FALSE(has_placement(false));
  link.eplb.layers_moved = 1;
  EXPECT_FALSE(has_placement(false));  // shows that layers moved
  EXPECT_TRUE(has_placement(false));
  EXPECT_FALSE(has_placement(false));
  EXPECT_TRUE(has_placement(true));
  EXPECT_EQ(link.asked_slots, (std::vector<bool>{true, false, false, true, false, true}));
}

}  // namespace
}  // namespace switchyard::page
