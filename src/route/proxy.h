// Forwards requests to workers.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/json.h"
#include "route/policy.h"
#include "route/replayed_stream.h"
#include "route/upstream.h"
#include "route/worker_set.h"
#include "server/http/http_server.h"

namespace switchyard::route {

// A request to a prefill and a decode worker, made from a client's request: the bodies for the two
// workers. Both have SGLang's fields bootstrap_host, bootstrap_port and
// bootstrap_room. A request without a seed gets one, so that another pair of workers samples the
// same tokens.
class PairRequest {
 public:
  // nullopt: the request does not generate text, or its body is not a JSON object.
  static std::optional<PairRequest> Of(const http::Request& request, uint64_t seed);

  struct Bodies {
    std::string prefill, decode;
  };
  // `port`: of the prefill worker's bootstrap server; nullopt: the decode worker's default.
  // `attempt`: from 0. Later attempts have other names (rid), because a worker may still have the
  // request of an earlier one.
  Bodies For(const std::string& host, std::optional<int> port, uint64_t room, int attempt) const;
  StreamFormat format() const { return format_; }  // of the response, if it is a stream

 private:
  nlohmann::ordered_json body_;
  StreamFormat format_ = StreamFormat::kChunks;
};

struct ProxyOptions {
  UpstreamTimeouts timeouts;
  int max_retries = 3;  // maximum number of further workers that a request is sent to
  std::chrono::milliseconds health_interval{5'000};
  std::chrono::milliseconds health_timeout{5'000};
  // How long a request whose worker has failed waits for a healthy pair of workers.
  std::chrono::milliseconds pair_wait{10'000};
  std::string worker_key;                         // API key of the workers; empty: the client's
  size_t max_response_bytes = size_t{256} << 20;  // maximum size of a response that is not streamed
};

struct ProxyCounts {
  std::atomic<uint64_t> requests{0}, retries{0}, without_worker{0}, cut_streams{0};
  std::atomic<uint64_t> replays{0};  // streams that another pair of workers continued
};

// Forwards each request to one worker, and streams the response to the client as it arrives. If the
// worker fails before the client has received any part of the response, the request is sent to
// another worker. For an event stream, this applies until the first event.
//
// Requests of a session go to the worker that opened it, and to no other one.
//
// With a policy for prefill workers, requests that generate text go to a prefill and a decode
// worker at once. The client gets the response of the decode worker. If either of them fails,
// another pair repeats the request, also after the client has received events. The events that the
// client has are not sent again (ReplayedStream). All other requests go to a decode worker.
//
// One thread of its own transfers the bytes and checks the workers' health. `workers` and the
// policies must outlive the proxy.
class Proxy {
 public:
  // `prefill_policy`: null without prefill workers. Else `policy` is that of decode workers.
  Proxy(ProxyOptions options, WorkerSet& workers, Policy& policy, Policy* prefill_policy = nullptr);
  ~Proxy();  // cuts off exchanges in progress

  // From any thread; returns immediately.
  void Forward(std::shared_ptr<const http::Request> request, const http::Responder& responder);
  // Sends the request to all workers at the same time. Responds with the status and the response of
  // each worker, once all of them have responded.
  void Broadcast(std::shared_ptr<const http::Request> request, const http::Responder& responder);
  // Checks the health of the worker periodically until the worker is removed.
  void Watch(int64_t worker);

  const ProxyCounts& counts() const { return counts_; }

 private:
  enum class Outcome { kAnswered, kRetry };
  class Exchange;
  class OpenAt;
  struct PairState;
  struct PairLeases {
    WorkerSet::Lease prefill, decode;
  };

  boost::asio::awaitable<void> Serve(std::shared_ptr<const http::Request> request,
                                     http::Responder responder);
  boost::asio::awaitable<Outcome> Attempt(Exchange& exchange, const WorkerSet::Lease& lease);
  boost::asio::awaitable<std::unique_ptr<Upstream>> SendTo(Exchange& exchange,
                                                           const WorkerSet::Lease& lease);
  boost::asio::awaitable<void> Relay(Exchange& exchange, Upstream& upstream);
  // Requests to pairs of workers (proxy_pairs.cc).
  boost::asio::awaitable<void> ServePair(Exchange& exchange, const PairRequest& request);
  boost::asio::awaitable<std::optional<PairLeases>> AcquirePair(const Exchange& exchange,
                                                                PairState& state, bool wait);
  boost::asio::awaitable<Outcome> AttemptPair(Exchange& exchange, PairState& state,
                                              const PairLeases& leases);
  boost::asio::awaitable<void> RunPrefill(std::shared_ptr<PairState> state, WorkerSet::Lease lease,
                                          std::shared_ptr<const http::Request> request);
  // Sends the response to the client. Returns "", or a failure that the response reports. In that
  // case another pair may succeed.
  boost::asio::awaitable<std::string> RelayPair(Exchange& exchange, PairState& state,
                                                Upstream& upstream);
  // A connection to the worker failed.
  void NoteFailure(const WorkerSet::Lease& lease, const UpstreamError& error);
  void Forget(int64_t worker);
  boost::asio::awaitable<void> CheckHealth(int64_t worker);
  // Call after a worker became unhealthy. Its requests that have no event yet are cancelled, and so
  // sent to other workers of its role, if there are any.
  void BecameUnhealthy(int64_t worker, WorkerRole role);
  boost::asio::awaitable<std::string> CheckOnce(const WorkerUrl& worker);
  struct Gathering;
  boost::asio::awaitable<void> SendToOne(std::shared_ptr<Gathering> gathering, size_t index,
                                         WorkerUrl worker);
  // The worker of the next attempt of an exchange. Fails the exchange if there is none.
  WorkerSet::Lease AcquireOne(Exchange& exchange, WorkerRole role);
  // Notes which worker has a session, or that a session was closed.
  void NoteSession(const Exchange& exchange, std::string_view response);

  const ProxyOptions options_;
  WorkerSet& workers_;
  Policy& policy_;
  Policy* const prefill_policy_;  // or null
  std::mt19937_64 random_;        // of the thread; rooms and seeds of pairs
  ProxyCounts counts_;
  // Used on the proxy's thread only. Declared before io_, because coroutines that the destructor of
  // io_ destroys still use it.
  std::map<int64_t, std::set<Exchange*>> exchanges_;  // exchanges in progress, by worker id
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  IdleConnections idle_;  // after io_, because its streams belong to io_
  std::thread thread_;
};

}  // namespace switchyard::route
