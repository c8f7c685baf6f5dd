// Requests that a prefill and a decode worker compute together.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "core/log.h"
#include "route/proxy_exchange.h"
#include "route/replayed_stream.h"

namespace switchyard::route {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using namespace std::chrono_literals;

constexpr auto kPairPoll = 50ms;
// How long the decode worker may take to report an error that the prefill worker has reported too.
constexpr auto kSameError = 1s;

// The status of an event that reports an error (http::ErrorBody); 0: it is another event.
int ErrorStatus(const EventReader::Event& of) {
  const bool failed = of.name == "response.failed";
  const std::string& data = of.data;
  if (!failed && data.find("\"error\"") == std::string::npos) return 0;
  const auto event = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return failed ? 500 : 0;
  if (!failed && (!event.contains("error") || !event["error"].is_object())) return 0;
  const auto code = event.find("code");
  return code != event.end() && code->is_number_integer() ? code->get<int>() : 500;
}

}  // namespace

// Shared by the coroutines of a request. All of them run on the proxy's thread.
struct Proxy::PairState {
  explicit PairState(StreamFormat format) : sent(format) {}

  ReplayedStream sent;
  std::vector<int64_t> tried;                          // workers that have failed, of both roles
  std::shared_ptr<Upstream*> decode, prefill;          // of the present attempt, to cancel
  bool ended = false;                                  // the present attempt has ended
  std::string prefill_failure;                         // not empty: the attempt was cancelled
  std::optional<std::pair<int, std::string>> refusal;  // of the prefill worker, for the client
};

asio::awaitable<std::optional<Proxy::PairLeases>> Proxy::AcquirePair(const Exchange& exchange,
                                                                     PairState& state, bool wait) {
  asio::steady_timer timer(io_);
  const auto until = std::chrono::steady_clock::now() + options_.pair_wait;
  const std::string& key = exchange.prompt.key;
  for (;;) {
    // A lease counts as a request, and changes the state of its policy. So both leases are acquired
    // only if a worker of each role is available.
    if (workers_.HasOther(state.tried, WorkerRole::kDecode) &&
        workers_.HasOther(state.tried, WorkerRole::kPrefill)) {
      PairLeases leases{.decode = workers_.Acquire(policy_, key, state.tried, WorkerRole::kDecode)};
      if (leases.decode)
        leases.prefill = workers_.Acquire(*prefill_policy_, key, state.tried, WorkerRole::kPrefill);
      if (leases.prefill) co_return leases;
      if (leases.decode) workers_.Release(leases.decode.id);  // no prefill worker is left
    }
    if (!std::exchange(state.tried, {}).empty())
      continue;  // the workers tried before may work again
    if (!wait || exchange.responder->Closed() || std::chrono::steady_clock::now() >= until)
      co_return std::nullopt;
    timer.expires_after(kPairPoll);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> Proxy::ServePair(Exchange& exchange, const PairRequest& request) {
  const std::shared_ptr<const http::Request> original = exchange.request;
  const auto sent = std::make_shared<PairState>(request.format());
  for (int attempt = 0; !exchange.responder->Closed(); ++attempt) {
    const auto leases = co_await AcquirePair(exchange, *sent, /*wait=*/attempt > 0);
    if (!leases) {
      ++counts_.without_worker;
      exchange.Fail(503,
                    exchange.failure.empty()
                        ? "no healthy prefill worker, or no healthy decode worker"
                        : fmt::format("no other pair of workers is healthy; {}", exchange.failure));
      co_return;
    }
    if (attempt > 0) ++counts_.retries;
    if (attempt > 0 && exchange.events_sent) ++counts_.replays;
    const OpenAt prefill(*this, leases->prefill.id, exchange);
    const OpenAt decode(*this, leases->decode.id, exchange);
    const PairRequest::Bodies bodies = request.For(
        leases->prefill.url.host, leases->prefill.bootstrap_port, random_() >> 1, attempt);
    auto to_prefill = std::make_shared<http::Request>(*original);
    to_prefill->body = bodies.prefill;
    auto to_decode = std::make_shared<http::Request>(*original);
    to_decode->body = bodies.decode;
    exchange.request = to_decode;
    exchange.worker_unhealthy = false;
    sent->ended = false;
    sent->prefill_failure.clear();
    sent->refusal.reset();
    sent->decode = exchange.upstream;
    sent->prefill = std::make_shared<Upstream*>(nullptr);
    asio::co_spawn(io_, RunPrefill(sent, leases->prefill, to_prefill), asio::detached);
    const Outcome outcome = co_await AttemptPair(exchange, *sent, *leases);
    sent->ended = true;
    if (*sent->prefill) (*sent->prefill)->Cancel();
    if (outcome == Outcome::kAnswered) co_return;
    LOG_WARNING("request {}: {}", original->id, exchange.failure);
    if (attempt >= options_.max_retries || !sent->sent.Restart()) {
      if (exchange.events_sent) ++counts_.cut_streams;
      exchange.Fail(502,
                    fmt::format("{} pairs of workers failed; {}", attempt + 1, exchange.failure));
      co_return;
    }
  }
}

asio::awaitable<void> Proxy::RunPrefill(std::shared_ptr<PairState> state, WorkerSet::Lease lease,
                                        std::shared_ptr<const http::Request> request) {
  const std::shared_ptr<Upstream*> self = state->prefill, decode = state->decode;
  const auto current = [&] { return !state->ended && state->prefill == self; };
  Upstream upstream(beast::tcp_stream(io_), options_.timeouts);
  *self = &upstream;
  std::string failure;
  int status = 0;
  std::string body;
  try {
    co_await upstream.Connect(lease.url);
    co_await upstream.Send(RequestHead(*request, lease.url, options_.worker_key), request->body);
    status = upstream.status();
    if (status == 200) {
      while (!(co_await upstream.Read()).empty())
        continue;  // discarded: the client gets the decode worker's response
    } else {
      body = co_await upstream.ReadAll(options_.max_response_bytes);
    }
    workers_.RequestSucceeded(lease.id);
    if (status != 200) failure = fmt::format("{} returned {}", lease.url.text, status);
  } catch (const ResponseTooLarge& error) {
    failure = fmt::format("{} returned {}: {}", lease.url.text, status, error.what());
    body = http::ErrorBody(status, failure);
  } catch (const UpstreamError& error) {
    failure = fmt::format("{}: {}", lease.url.text, error.what());
    *self = nullptr;
    if (current()) NoteFailure(lease, error);
  }
  *self = nullptr;
  if (failure.empty() || !current()) co_return;
  if (status >= 400 && status < 500 && !MayRetry(status)) {
    asio::steady_timer timer(io_, kSameError);
    co_await timer.async_wait(asio::use_awaitable);
    if (!current()) co_return;
    state->refusal.emplace(status, body);
  }
  state->prefill_failure = failure;
  state->tried.push_back(lease.id);
  if (*decode) (*decode)->Cancel();
}

asio::awaitable<Proxy::Outcome> Proxy::AttemptPair(Exchange& exchange, PairState& state,
                                                   const PairLeases& leases) {
  std::unique_ptr<Upstream> upstream;
  Outcome outcome = Outcome::kAnswered;
  const WorkerSet::Lease& decode = leases.decode;
  try {
    upstream = co_await SendTo(exchange, decode);
    const std::string failure = co_await RelayPair(exchange, state, *upstream);
    workers_.RequestSucceeded(decode.id);
    if (!failure.empty()) {
      exchange.failure = failure;
      state.tried.push_back(leases.prefill.id);  // it has probably failed
      outcome = Outcome::kRetry;
    }
  } catch (const ResponseTooLarge& error) {
    exchange.Fail(502, fmt::format("{}: {}", decode.url.text, error.what()));
  } catch (const UpstreamError& error) {
    *exchange.upstream = nullptr;  // SendTo may have destroyed it
    if (!exchange.responder || exchange.responder->Closed()) {
      outcome = Outcome::kAnswered;  // the client has gone
    } else if (!state.prefill_failure.empty()) {
      exchange.failure = state.prefill_failure;
      outcome = Outcome::kRetry;
      if (state.refusal && !exchange.begun) {
        exchange.responder->Send(state.refusal->first, http::kJson, state.refusal->second);
        outcome = Outcome::kAnswered;
      }
    } else if (exchange.worker_unhealthy) {
      exchange.failure = "a worker of the request became unhealthy";
      outcome = Outcome::kRetry;
    } else {
      exchange.failure = fmt::format("{}: {}", decode.url.text, error.what());
      NoteFailure(decode, error);
      state.tried.push_back(decode.id);
      outcome = Outcome::kRetry;
    }
  }
  *exchange.upstream = nullptr;
  if (upstream && upstream->reusable()) idle_.Put(decode.id, upstream->TakeStream());
  co_return outcome;
}

asio::awaitable<std::string> Proxy::RelayPair(Exchange& exchange, PairState& state,
                                              Upstream& upstream) {
  const http::Responder& responder = *exchange.responder;
  const int status = upstream.status();
  const std::string content_type = upstream.Header("content-type");
  if (!IsEventStream(content_type) || status != 200) {
    const std::string body = co_await upstream.ReadAll(options_.max_response_bytes);
    if (MayRetry(status) || exchange.begun)
      co_return fmt::format("the decode worker returned {}: {}", status, body.substr(0, 512));
    responder.Send(status, content_type, body, upstream.ForwardedHeaders());
    co_return std::string();
  }
  EventReader reader;
  for (std::string part; !(part = co_await upstream.Read()).empty();) {
    for (const EventReader::Event& event : reader.Add(part)) {
      if (ErrorStatus(event) >= 500)
        co_return "the decode worker reports: " + event.data.substr(0, 512);
      if (!exchange.begun) responder.BeginStream(status, content_type, upstream.ForwardedHeaders());
      exchange.begun = true;
      if (event.data.empty()) {
        responder.Write(http::SseComment(std::string_view(event.comment).substr(1)));
      } else if (const auto data = state.sent.Next(event.data, event.name)) {
        const std::string name = event.name.empty() ? "" : "event: " + event.name + "\n";
        responder.Write(name + http::SseEvent(*data));
        exchange.events_sent = true;
      }
    }
    if (responder.Closed()) co_return std::string();
  }
  if (!state.sent.done()) throw UpstreamError(false, "the stream ended without its last event");
  responder.EndStream();
  co_return std::string();
}

}  // namespace switchyard::route
