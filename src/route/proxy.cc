#include "route/proxy.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "core/json.h"
#include "core/log.h"
#include "route/proxy_exchange.h"

namespace switchyard::route {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

// Whether bytes of an event stream contain the beginning of an event, and not only comments.
class EventSeen {
 public:
  bool Add(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\n' || c == '\r') {
        line_start_ = true;
      } else if (line_start_) {
        line_start_ = false;
        if (c != ':') return seen_ = true;
      }
    }
    return seen_;
  }

 private:
  bool line_start_ = true, seen_ = false;
};

}  // namespace

Proxy::Proxy(ProxyOptions options, WorkerSet& workers, Policy& policy, Policy* prefill_policy)
    : options_(std::move(options)),
      workers_(workers),
      policy_(policy),
      prefill_policy_(prefill_policy),
      random_(std::random_device{}()),
      work_(asio::make_work_guard(io_)),
      thread_([this] { io_.run(); }) {}

Proxy::~Proxy() {
  io_.stop();
  thread_.join();
}

void Proxy::Forward(std::shared_ptr<const http::Request> request,
                    const http::Responder& responder) {
  ++counts_.requests;
  asio::co_spawn(io_, Serve(std::move(request), responder), asio::detached);
}

void Proxy::Watch(int64_t worker) { asio::co_spawn(io_, CheckHealth(worker), asio::detached); }

asio::awaitable<void> Proxy::Serve(std::shared_ptr<const http::Request> request,
                                   http::Responder responder) {
  Exchange exchange(std::move(request), std::move(responder));
  exchange.prompt = ReadPrompt(exchange.request->body);
  if (exchange.request->path.starts_with("/v1/responses/"))
    exchange.prompt.names_stored_response = true;
  exchange.responder->OnClose([this, upstream = exchange.upstream] {
    asio::post(io_, [upstream] {
      if (*upstream) (*upstream)->Cancel();
    });
  });
  if (prefill_policy_) {
    if (const auto pair = PairRequest::Of(*exchange.request, random_()))
      co_return co_await ServePair(exchange, *pair);
  }
  const WorkerRole role = prefill_policy_ ? WorkerRole::kDecode : WorkerRole::kPlain;
  for (int attempt = 0; !exchange.responder->Closed(); ++attempt) {
    const WorkerSet::Lease lease = AcquireOne(exchange, role);
    if (!lease) break;
    const OpenAt open(*this, lease.id, exchange);
    if (attempt > 0) ++counts_.retries;
    exchange.tried.push_back(lease.id);
    exchange.worker_unhealthy = false;
    exchange.may_try_more = !exchange.at_session && attempt < options_.max_retries &&
                            workers_.HasOther(exchange.tried, role);
    const Outcome outcome = co_await Attempt(exchange, lease);
    if (outcome == Outcome::kAnswered) break;
    if (exchange.at_session || attempt >= options_.max_retries) {
      exchange.Fail(502, fmt::format("{} workers failed; {}", attempt + 1, exchange.failure));
      break;
    }
  }
}

WorkerSet::Lease Proxy::AcquireOne(Exchange& exchange, WorkerRole role) {
  const std::string& session = exchange.prompt.session;
  if (const auto lease = session.empty() ? std::nullopt : workers_.AcquireFor(session)) {
    exchange.at_session = true;
    if (!*lease)
      exchange.Fail(503, fmt::format("the worker of session {} is not healthy", session));
    return *lease;
  }
  WorkerSet::Lease lease = workers_.Acquire(policy_, exchange.prompt.key, exchange.tried, role);
  if (lease) return lease;
  ++counts_.without_worker;
  exchange.Fail(503, exchange.failure.empty()
                         ? fmt::format("none of {} workers is healthy", workers_.All().size())
                         : fmt::format("no other worker is healthy; {}", exchange.failure));
  return {};
}

// The response of /open_session is the id of the session, as a JSON string.
void Proxy::NoteSession(const Exchange& exchange, std::string_view response) {
  if (exchange.request->path == "/close_session") {
    workers_.CloseSession(exchange.prompt.session);
  } else if (exchange.request->path == "/open_session") {
    const auto id = nlohmann::json::parse(response, nullptr, /*allow_exceptions=*/false);
    if (id.is_string()) workers_.OpenSession(id.get<std::string>(), exchange.tried.back());
  }
}

asio::awaitable<std::unique_ptr<Upstream>> Proxy::SendTo(Exchange& exchange,
                                                         const WorkerSet::Lease& lease) {
  const std::string head = RequestHead(*exchange.request, lease.url, options_.worker_key);
  if (auto idle = idle_.Take(lease.id)) {
    auto upstream = std::make_unique<Upstream>(std::move(*idle), options_.timeouts);
    *exchange.upstream = upstream.get();
    try {
      co_await upstream->Send(head, exchange.request->body);
      co_return upstream;
    } catch (const UpstreamError&) {
      // The worker may have closed the idle connection before it received the request. So the
      // request is sent again on a new connection.
      *exchange.upstream = nullptr;
      if (exchange.responder->Closed() || upstream->cancelled()) throw;
    }
  }
  auto upstream = std::make_unique<Upstream>(beast::tcp_stream(io_), options_.timeouts);
  *exchange.upstream = upstream.get();
  co_await upstream->Connect(lease.url);
  co_await upstream->Send(head, exchange.request->body);
  co_return upstream;
}

asio::awaitable<Proxy::Outcome> Proxy::Attempt(Exchange& exchange, const WorkerSet::Lease& lease) {
  std::unique_ptr<Upstream> upstream;
  Outcome outcome = Outcome::kAnswered;
  try {
    upstream = co_await SendTo(exchange, lease);
    const int status = upstream->status();
    const bool not_stored = status == 404 && exchange.prompt.names_stored_response;
    if ((MayRetry(status) || not_stored) && exchange.may_try_more) {
      exchange.failure = fmt::format("{} returned {}", lease.url.text, status);
      outcome = Outcome::kRetry;
    } else {
      co_await Relay(exchange, *upstream);
    }
    workers_.RequestSucceeded(lease.id);
  } catch (const ResponseTooLarge& error) {
    exchange.Fail(502, fmt::format("{}: {}", lease.url.text, error.what()));
  } catch (const UpstreamError& error) {
    *exchange.upstream = nullptr;  // SendTo may have destroyed it
    if (!exchange.responder || exchange.responder->Closed()) {
      outcome = Outcome::kAnswered;  // the client has gone, so the exchange was cancelled
    } else {
      if (exchange.worker_unhealthy) {
        exchange.failure = fmt::format("{} became unhealthy", lease.url.text);
      } else {
        exchange.failure = fmt::format("{}: {}", lease.url.text, error.what());
        NoteFailure(lease, error);
      }
      outcome = Outcome::kRetry;
      if (exchange.events_sent) {
        ++counts_.cut_streams;
        exchange.Fail(502, exchange.failure);
        outcome = Outcome::kAnswered;
      }
    }
  }
  *exchange.upstream = nullptr;
  if (upstream && upstream->reusable()) idle_.Put(lease.id, upstream->TakeStream());
  co_return outcome;
}

asio::awaitable<void> Proxy::Relay(Exchange& exchange, Upstream& upstream) {
  const http::Responder& responder = *exchange.responder;
  const int status = upstream.status();
  const std::string content_type = upstream.Header("content-type");
  const bool events = IsEventStream(content_type);
  if (exchange.begun && !(events && status == 200)) {
    // An earlier attempt has begun an event stream, so this response is sent as an event of that
    // stream.
    exchange.Fail(status, co_await upstream.ReadAll(options_.max_response_bytes));
    co_return;
  }
  if (!events && upstream.has_length()) {
    const std::string body = co_await upstream.ReadAll(options_.max_response_bytes);
    if (status == 200) NoteSession(exchange, body);
    responder.Send(status, content_type, body, upstream.ForwardedHeaders());
    co_return;
  }
  EventSeen seen;
  for (std::string part; !(part = co_await upstream.Read()).empty();) {
    if (!exchange.begun) responder.BeginStream(status, content_type, upstream.ForwardedHeaders());
    exchange.begun = true;
    exchange.events_sent = !events || seen.Add(part);
    responder.Write(part);
    if (responder.Closed()) co_return;
  }
  if (!exchange.begun) responder.BeginStream(status, content_type, upstream.ForwardedHeaders());
  responder.EndStream();
}

void Proxy::NoteFailure(const WorkerSet::Lease& lease, const UpstreamError& error) {
  const bool changed = error.refused ? workers_.Refused(lease.id, error.what())
                                     : workers_.Failed(lease.id, error.what());
  if (!changed) return;
  LOG_WARNING("worker {}: unhealthy: {}", lease.url.text, error.what());
  BecameUnhealthy(lease.id, lease.role);
}

void Proxy::BecameUnhealthy(int64_t worker, WorkerRole role) {
  idle_.Drop(worker);
  Forget(worker);  // a new process has an empty cache
  if (!workers_.HasOther({&worker, 1}, role)) return;
  for (Exchange* const exchange : exchanges_[worker]) {
    if (exchange->events_sent || !*exchange->upstream) continue;
    exchange->worker_unhealthy = true;
    (*exchange->upstream)->Cancel();
  }
}

asio::awaitable<std::string> Proxy::CheckOnce(const WorkerUrl& worker) {
  http::Request request;
  request.method = "GET";
  request.path = "/health";
  request.peer = "router";
  request.id = "health-check";
  UpstreamTimeouts timeouts{.connect = options_.health_timeout, .silence = options_.health_timeout};
  Upstream upstream(beast::tcp_stream(io_), timeouts);
  try {
    co_await upstream.Connect(worker);
    co_await upstream.Send(RequestHead(request, worker, options_.worker_key), {});
    if (upstream.status() == 200) co_return std::string();
    co_return fmt::format("GET /health returned {}", upstream.status());
  } catch (const UpstreamError& error) {
    co_return error.what();
  }
}

asio::awaitable<void> Proxy::CheckHealth(int64_t worker) {
  asio::steady_timer timer(io_);
  while (true) {
    const auto all = workers_.All();
    const auto state = std::ranges::find(all, worker, &WorkerState::id);
    if (state == all.end()) break;
    const std::string failure = co_await CheckOnce(state->url);
    if (failure.empty()) {
      if (workers_.CheckSucceeded(worker)) LOG_INFO("worker {}: healthy", state->url.text);
    } else if (workers_.Failed(worker, failure)) {
      LOG_WARNING("worker {}: unhealthy: {}", state->url.text, failure);
      BecameUnhealthy(worker, state->role);
    }
    // A worker that is not healthy may be loading, so it is checked more often.
    const bool waiting = !state->healthy && !failure.empty();
    timer.expires_after(waiting ? std::min(options_.health_interval, std::chrono::milliseconds(500))
                                : options_.health_interval);
    co_await timer.async_wait(asio::use_awaitable);
  }
  idle_.Drop(worker);
  Forget(worker);
}

void Proxy::Forget(int64_t worker) {
  policy_.Forget(worker);
  if (prefill_policy_) prefill_policy_->Forget(worker);
}

// A request to all workers. Used on the proxy's thread.
struct Proxy::Gathering {
  std::shared_ptr<const http::Request> request;
  http::Responder responder;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();  // one for each worker
  size_t open = 0;                                                   // workers without a result
  bool all_succeeded = true;

  void Respond() {
    responder.Send(all_succeeded ? 200 : 502, http::kJson,
                   nlohmann::ordered_json{{"workers", std::move(results)}}.dump(
                       -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
};

void Proxy::Broadcast(std::shared_ptr<const http::Request> request,
                      const http::Responder& responder) {
  asio::post(io_, [this, request = std::move(request), responder] {
    const std::vector<WorkerState> all = workers_.All();
    const auto gathering =
        std::make_shared<Gathering>(Gathering{.request = request, .responder = responder});
    gathering->open = all.size();
    if (all.empty()) return gathering->Respond();
    for (const WorkerState& worker : all) gathering->results.push_back({{"url", worker.url.text}});
    for (size_t i = 0; i < all.size(); ++i)
      asio::co_spawn(io_, SendToOne(gathering, i, all[i].url), asio::detached);
  });
}

// A worker may take as long as for any other request, because it may load weights.
asio::awaitable<void> Proxy::SendToOne(std::shared_ptr<Gathering> gathering, size_t index,
                                       WorkerUrl worker) {
  nlohmann::ordered_json& result = gathering->results[index];
  Upstream upstream(beast::tcp_stream(io_), options_.timeouts);
  try {
    co_await upstream.Connect(worker);
    co_await upstream.Send(RequestHead(*gathering->request, worker, options_.worker_key),
                           gathering->request->body);
    const int status = upstream.status();
    const std::string body = co_await upstream.ReadAll(options_.max_response_bytes);
    result["status"] = status;
    gathering->all_succeeded &= status < 300;
    auto json = nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
    result["response"] = json.is_discarded() ? nlohmann::ordered_json(body) : std::move(json);
  } catch (const std::exception& error) {  // UpstreamError, ResponseTooLarge
    result["error"] = error.what();
    gathering->all_succeeded = false;
  }
  if (--gathering->open == 0) gathering->Respond();
}

}  // namespace switchyard::route
