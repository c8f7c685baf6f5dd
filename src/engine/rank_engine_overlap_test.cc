// Random traffic: outputs with an overlapped schedule equal those with --disable-overlap-schedule.
#include <gmock/gmock.h>

#include <set>

#include "engine/sampler/random.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

// A stream of uniform random numbers, determined by its seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(UniformDraw(seed_, ++count_) * static_cast<double>(n));
  }
  int32_t Int(int32_t n) { return static_cast<int32_t>(Below(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Below(std::ssize(values))];
  }

 private:
  const uint64_t seed_;
  int64_t count_ = 0;
};

// A request and what its client does. A client that stops ignores later outputs, as the front does.
struct Client {
  EngineRequest request;
  int arrival = 0;             // step in which the request arrives
  std::vector<int32_t> stop;   // ids of a stop string; empty: none
  int64_t cancels_after = -1;  // cancels after this many tokens; −1: never
  int disconnects = -1;        // disconnects this many steps after the arrival; −1: never
};

struct Traffic {
  RankEngine::Options options;
  std::vector<Client> clients;
};

EngineRequest RandomRequest(uint64_t id, int64_t longest, Draws& draws) {
  EngineRequest request{.id = id};
  const auto length = static_cast<int32_t>(1 + draws.Below(longest));
  request.input_ids = Count(length, draws.Int(3) * 20);  // shared prefixes
  if (draws.OneIn(2)) request.input_ids[draws.Int(length)] = draws.Int(61);
  if (draws.OneIn(4)) request.priority = draws.Int(40);
  if (draws.OneIn(8)) request.cache_salt = "other";
  SamplingParams& p = request.sampling;
  p.max_new_tokens = draws.Int(30);
  p.temperature = draws.OneIn(3) ? 0.0f : 0.9f;
  p.ignore_eos = draws.OneIn(2);
  if (draws.OneIn(2)) p.seed = draws.Below(5);
  if (draws.OneIn(4)) p.top_p = 0.8f;
  if (draws.OneIn(4)) p.top_k = 7;
  if (draws.OneIn(4)) p.min_p = 0.05f;
  if (draws.OneIn(3)) p.stop_token_ids = {draws.Int(61), draws.Int(61), draws.Int(61)};
  if (!draws.OneIn(3)) return request;  // its tokens are sampled by the model
  if (draws.OneIn(3)) p.repetition_penalty = 1.2f;
  if (draws.OneIn(3)) p.frequency_penalty = 0.3f;
  if (draws.OneIn(3)) p.min_new_tokens = std::min(p.max_new_tokens, 4);
  if (draws.OneIn(4)) p.logit_bias = {{draws.Int(61), 1.5f}};
  if (draws.OneIn(4)) p.bad_words = {{draws.Int(61), draws.Int(61)}};
  if (draws.OneIn(2))
    request.logprob = {.enabled = true, .start = draws.Int(length + 1) - 1, .top = draws.Int(3)};
  if (draws.OneIn(3)) request.routed_experts = {.enabled = true, .start = draws.Int(length + 1)};
  return request;
}

Traffic RandomTraffic(uint64_t seed) {
  Draws draws(seed);
  Traffic traffic;
  RankEngine::Options& o = traffic.options;
  o.page_size = draws.Of({1, 4, 16});
  const int64_t longest = draws.Of({12, 40, 90});
  // The random size of the cache ranges from slightly more than one request to all requests.
  o.num_pages = (longest + 35) / o.page_size + draws.Below(200 / o.page_size) + 2;
  o.max_running_requests = draws.Of({1, 3, 8, 64});
  o.chunked_prefill_size = draws.Of({1, 5, 16, 64, -1});
  o.policy = draws.Of({SchedulePolicy::kFcfs, SchedulePolicy::kLpm, SchedulePolicy::kLof});
  o.conservativeness = draws.Of({0.0, 0.3, 1.0});
  o.priorities = draws.OneIn(3);
  o.preemption_threshold = 5;
  o.enable_radix_cache = !draws.OneIn(4);
  o.context_length = longest + 30;
  o.eos_token_ids = {7};
  o.random_seed = seed;
  o.max_logit_rows = draws.Of({0, 1, 3});
  const int64_t pause = draws.Of({1, 3, 12});  // steps between arrivals
  int step = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    step += static_cast<int>(draws.Below(pause));
    Client& client = traffic.clients.emplace_back();
    client.request = RandomRequest(id, longest, draws);
    client.arrival = step;
    if (draws.OneIn(5)) client.stop.push_back(draws.Int(61));
    if (draws.OneIn(5)) client.stop = {draws.Int(61), draws.Int(61)};
    if (draws.OneIn(6)) client.cancels_after = 1 + draws.Below(10);
    if (draws.OneIn(6)) client.disconnects = draws.Int(20);
  }
  return traffic;
}

// What a client has received.
struct Received {
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> input_logprobs, output_logprobs;
  std::vector<int32_t> routed_experts;
  FinishReason finish = FinishReason::kNone;
  int32_t matched = -1;
  std::string error;
  bool stopped = false;       // the client ended the output: stop string or limit of tokens
  bool disconnected = false;  // the number of tokens at that time depends on the schedule
};

class Server {
 public:
  Server(const Traffic& traffic, bool overlaps)
      : traffic_(traffic), rig_(With(traffic.options, overlaps), 61, /*launches=*/true) {}

  std::map<uint64_t, Received> Run() {
    for (int step = 0; Step(step); ++step) {
      EXPECT_LT(step, 20000);
      if (step == 20000) break;
    }
    EXPECT_TRUE(rig_.engine.PoolIsWhole());
    return std::move(received_);
  }
  int64_t launched() const { return rig_.model.launched; }
  int64_t retractions() const { return rig_.engine.Stats().retractions; }

 private:
  static RankEngine::Options With(RankEngine::Options options, bool overlaps) {
    options.overlap_schedule = overlaps;
    return options;
  }

  // Returns whether there is work left.
  bool Step(int step) {
    bool arriving = false;
    for (const Client& client : traffic_.clients) {
      const uint64_t id = client.request.id;
      if (client.arrival == step) messages_.emplace_back(client.request);
      if (client.disconnects >= 0 && client.arrival + client.disconnects == step) {
        Received& got = received_[id];
        got.disconnected = got.finish == FinishReason::kNone && !got.stopped;
        messages_.emplace_back(AbortRequest{id});
      }
      arriving |= client.arrival > step || client.arrival + client.disconnects > step;
    }
    rig_.Tell(std::exchange(messages_, {}));
    for (const RequestOutput& output : rig_.engine.Step().outputs) Receive(output);
    return arriving || !messages_.empty() || rig_.engine.HasWork();
  }

  void Receive(const RequestOutput& output) {
    const Client& client = traffic_.clients[output.id - 1];
    Received& got = received_[output.id];
    if (got.stopped || got.disconnected) return;
    EXPECT_EQ(got.finish, FinishReason::kNone);
    for (size_t i = 0; i < output.new_tokens.size() && !got.stopped; ++i) {
      got.tokens.push_back(output.new_tokens[i]);
      if (i < output.output_logprobs.size())
        got.output_logprobs.push_back(output.output_logprobs[i]);
      got.stopped =
          EndsWith(got.tokens, client.stop) || std::ssize(got.tokens) == client.cancels_after;
    }
    got.input_logprobs.insert(got.input_logprobs.end(), output.input_logprobs.begin(),
                              output.input_logprobs.end());
    got.routed_experts.insert(got.routed_experts.end(), output.routed_experts.begin(),
                              output.routed_experts.end());
    if (got.stopped) {
      messages_.emplace_back(AbortRequest{output.id});
      return;
    }
    got.finish = output.finish;
    got.matched = output.matched;
    got.error = output.error;
  }

  static bool EndsWith(const std::vector<int32_t>& tokens, const std::vector<int32_t>& stop) {
    return !stop.empty() && tokens.size() >= stop.size() &&
           std::equal(stop.rbegin(), stop.rend(), tokens.rbegin());
  }

  const Traffic& traffic_;
  Rig rig_;
  std::vector<ControlMessage> messages_;  // messages for the next step
  std::map<uint64_t, Received> received_;
};

void ExpectSame(const Received& got, const Received& want) {
  if (got.disconnected || want.disconnected) {  // one run may have sent more tokens than the other
    const auto [shorter, longer] = std::minmax(
        got.tokens, want.tokens, [](const auto& a, const auto& b) { return a.size() < b.size(); });
    EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
    return;
  }
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.stopped, want.stopped);
  EXPECT_EQ(got.finish, want.finish);
  EXPECT_EQ(got.matched, want.matched);
  EXPECT_EQ(got.error, want.error);
  EXPECT_EQ(got.routed_experts, want.routed_experts);
  EXPECT_TRUE(SameLogprobs(got.input_logprobs, want.input_logprobs));
  EXPECT_TRUE(SameLogprobs(got.output_logprobs, want.output_logprobs));
}

TEST(RankEngineOverlap, OutputsEqualThoseWithoutOverlap) {
  int64_t launched = 0, retractions = 0;
  std::set<FinishReason> finishes;
  int stopped = 0, disconnected = 0;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Traffic traffic = RandomTraffic(seed);
    Server overlapped(traffic, true), plain(traffic, false);
    auto got = overlapped.Run(), want = plain.Run();
    EXPECT_EQ(plain.launched(), 0);
    ASSERT_EQ(got.size(), traffic.clients.size());
    ASSERT_EQ(want.size(), traffic.clients.size());
    for (const auto& [id, one] : want) {
      SCOPED_TRACE(::testing::Message() << "request " << id);
      ExpectSame(got[id], one);
      finishes.insert(one.finish);
      stopped += one.stopped;
      disconnected += one.disconnected;
    }
    launched += overlapped.launched();
    retractions += std::min(overlapped.retractions(), plain.retractions());
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  // The requests of the traffic end in every possible way.
  EXPECT_GT(launched, 2000);
  EXPECT_GT(retractions, 50);
  EXPECT_GT(stopped, 100);
  EXPECT_GT(disconnected, 100);
  EXPECT_TRUE(finishes.contains(FinishReason::kStop));
  EXPECT_TRUE(finishes.contains(FinishReason::kLength));
}

}  // namespace
}  // namespace switchyard
