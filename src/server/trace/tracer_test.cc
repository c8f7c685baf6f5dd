#include "server/trace/tracer.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "server/api/json_body.h"
#include "server/http/http_server.h"

namespace switchyard::trace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A collector that keeps all spans.
class Collector {
 public:
  explicit Collector(int status = 200) : server_({}), status_(status) {
    server_.Route("POST", "/v1/traces",
                  [this](const std::shared_ptr<const http::Request>& request,
                         const http::Responder& responder) {
                    const Json body = Json::parse(request->body);
                    std::lock_guard lock(mutex_);
                    ++requests_;
                    for (const Json& group : body["resourceSpans"])
                      for (const Json& scope : group["scopeSpans"])
                        for (const Json& span : scope["spans"]) spans_.push_back(span);
                    responder.Send(status_, "application/json", "{}");
                  });
    server_.Start();
  }
  Endpoint endpoint() const {
    return Endpoint::Parse("http://127.0.0.1:" + std::to_string(server_.port()));
  }
  std::vector<Json> spans() {
    std::lock_guard lock(mutex_);
    return spans_;
  }
  int requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  http::Server server_;
  const int status_;
  std::mutex mutex_;
  std::vector<Json> spans_;
  int requests_ = 0;
};

const http::TraceContext kContext{.trace_id = std::string(32, 'a'),
                                  .parent_id = std::string(16, 'b'),
                                  .span_id = std::string(16, 'c')};

GenerationEvent Ended() {
  GenerationEvent event{.id = 7, .finish = FinishReason::kStop, .prompt_tokens = 5};
  const auto begin = Tracer::Clock::now();
  event.times = {.submitted = begin,
                 .first_token = begin + std::chrono::milliseconds(30),
                 .last_token = begin + std::chrono::milliseconds(80),
                 .queue_seconds = 0.01,
                 .has_token = true};
  return event;
}

Tracer::Options To(const Endpoint& endpoint) {
  return {.endpoint = endpoint,
          .resource = {.service = "s", .version = "1", .instance = "i"},
          .interval = std::chrono::milliseconds(5),
          .timeout = std::chrono::minutes(1),
          .last_timeout = std::chrono::minutes(1)};
}

int64_t Ns(const Json& span, const char* key) { return std::stoll(span[key].get<std::string>()); }

TEST(TracerTest, AGenerationHasSpansFromItsTimes) {
  Collector collector;
  {
    Tracer tracer(To(collector.endpoint()));
    tracer.AddGeneration(kContext, Ended(), "r1");
    GenerationEvent waiting{.id = 8, .finish = FinishReason::kAbort};
    waiting.times.submitted = Tracer::Clock::now();
    tracer.AddGeneration(kContext, waiting, "r2");
  }
  const std::vector<Json> spans = collector.spans();
  ASSERT_EQ(spans.size(), 4u);
  std::vector<std::string> names;
  for (const Json& span : spans) {
    names.push_back(span["name"]);
    EXPECT_EQ(span["traceId"], kContext.trace_id);
    EXPECT_EQ(span["parentSpanId"], kContext.span_id);
    EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
    EXPECT_EQ(span["kind"], 1);
    EXPECT_LE(Ns(span, "startTimeUnixNano"), Ns(span, "endTimeUnixNano"));
  }
  EXPECT_THAT(names, ElementsAre("queue", "prefill", "decode", "queue"));
  EXPECT_EQ(Ns(spans[0], "endTimeUnixNano"), Ns(spans[1], "startTimeUnixNano"));
  EXPECT_EQ(Ns(spans[1], "endTimeUnixNano"), Ns(spans[2], "startTimeUnixNano"));
  EXPECT_EQ(Ns(spans[2], "endTimeUnixNano") - Ns(spans[0], "startTimeUnixNano"), 80'000'000);
}

TEST(TracerTest, ARequestHasTheSpanOfItsContext) {
  Collector collector;
  http::Request traced{.method = "POST", .path = "/v1/x", .peer = "p", .id = "id 1"};
  traced.trace = std::make_shared<http::TraceContext>(kContext);
  const std::shared_ptr<const http::Request> request = std::make_shared<http::Request>(traced);
  const std::string route = "/v1/x", none;
  const auto now = Tracer::Clock::now();
  {
    Tracer tracer(To(collector.endpoint()));
    tracer.AddRequest({.request = request,
                       .route = route,
                       .status = 503,
                       .tokens = {.model = "m", .response_id = "r"},
                       .begin = now,
                       .end = now,
                       .response = none});
  }
  const std::vector<Json> spans = collector.spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["name"], "POST /v1/x");
  EXPECT_EQ(spans[0]["spanId"], kContext.span_id);
  EXPECT_EQ(spans[0]["parentSpanId"], kContext.parent_id);
  EXPECT_EQ(spans[0]["kind"], 2);
  EXPECT_EQ(spans[0]["status"]["code"], 2);
  EXPECT_EQ(spans[0]["attributes"][0],
            Json::parse(R"({"key": "request.id", "value": {"stringValue": "id 1"}})"));
}

TEST(TracerTest, SpansBeyondTheQueueAreDropped) {
  // Nothing listens at the reserved port 1.
  Tracer::Options options = To(Endpoint::Parse("127.0.0.1:1"));
  options.queue = 5;
  options.interval = std::chrono::hours(1);
  options.last_timeout = std::chrono::milliseconds(1);
  Tracer tracer(options);
  for (int i = 0; i < 4; ++i) tracer.AddGeneration(kContext, Ended(), "r");
  EXPECT_EQ(tracer.dropped(), 7u);
  EXPECT_EQ(tracer.exported(), 0u);
}

TEST(TracerTest, ARefusedBatchIsNotSentAgain) {
  Collector collector(400);
  Tracer::Options options = To(collector.endpoint());
  options.interval = std::chrono::hours(1);
  options.batch = 3;  // the spans of one generation
  {
    Tracer tracer(options);
    tracer.AddGeneration(kContext, Ended(), "r");
    while (tracer.dropped() == 0) std::this_thread::yield();
    EXPECT_EQ(tracer.dropped(), 3u);
  }
  EXPECT_EQ(collector.requests(), 1);
}

TEST(TracerTest, OnlyTheFirstRefusalIsLogged) {
  std::ostringstream lines;
  {
    const LogCapture capture(lines);
    Collector collector(400);
    Tracer::Options options = To(collector.endpoint());
    options.batch = 1;
    Tracer tracer(options);
    tracer.AddGeneration(kContext, Ended(), "r");
    while (tracer.dropped() < 3) std::this_thread::yield();
    EXPECT_EQ(collector.requests(), 3);
  }
  const std::string log = lines.str();
  const size_t first = log.find("refused 1 spans with status 400");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("with status 400", first + 30), std::string::npos) << log;
}

// Without this limit, the test would take an hour.
TEST(TracerTest, ASilentCollectorDoesNotHoldTheEnd) {
  std::optional<TcpStream> silent;
  TcpListener listener = TcpListener::Bind({"127.0.0.1", 0});
  Tracer::Options options = To({.address = listener.address()});
  options.batch = 3;
  options.timeout = std::chrono::hours(1);
  options.last_timeout = std::chrono::milliseconds(1);
  std::ostringstream lines;
  {
    const LogCapture capture(lines);
    Tracer tracer(options);
    for (int i = 0; i < 4; ++i) tracer.AddGeneration(kContext, Ended(), "r");
    // The first batch is in progress.
    silent = listener.Accept(IoLimit::After(std::chrono::minutes(1)));
    ASSERT_TRUE(silent);
  }
  EXPECT_THAT(lines.str(), HasSubstr("12 spans are dropped at the end"));
}

TEST(TraceEndpoint, IsParsed) {
  EXPECT_EQ(Endpoint::Parse("http://a.example:4318").path, "/v1/traces");
  EXPECT_EQ(Endpoint::Parse("http://a.example:4318/").path, "/v1/traces");
  EXPECT_EQ(Endpoint::Parse("http://a.example:4318/x/y").path, "/x/y");
  EXPECT_EQ(Endpoint::Parse("a.example:4318").address.port, 4318);
  for (const char* url :
       {"", "https://a:1", "grpc://a:1", "http://a", "http://a:b", "http://a:1/ x"})
    EXPECT_THROW(Endpoint::Parse(url), Error) << url;
}

}  // namespace
}  // namespace switchyard::trace
