// The HTTP/1.1 server: routes, requests, and responses that any thread may answer at any time.
//
// One Connection per client runs on an I/O thread and serves its requests strictly one after
// another, so that pipelined requests are answered in order. A handler is called once the whole
// request body has been read; it keeps the Responder and returns at once. While the response is
// under way the connection keeps reading, so that a client which hangs up is noticed promptly even
// when nothing is being written.
//
// I/O threads only move bytes: a request with a body is handed to a handler on a worker thread of
// lower priority, small bodies apart from large ones (worker_pool.h). What clients make the server
// hold is counted against one limit (memory_budget.h).
//
// A client that closes its sending side (FIN) still gets its answer. A hang-up looks the same until
// something is sent, so the connection then sends what clients ignore (Exchange::Probe); one that
// has hung up answers with a reset.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace switchyard::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

class MemoryCharge;  // memory_budget.h

// One request, whole and immutable once a handler sees it.
struct Request {
  std::string method;                         // as sent: "GET", "POST"; case matters
  std::string path;                           // percent-decoded, without the query; begins with '/'
  std::map<std::string, std::string> query;   // decoded; of a repeated name the last value
  std::map<std::string, std::string> params;  // {name} of the route -> what stood there, decoded
  Headers headers;                            // in the order sent
  std::string body;                           // whole, any transfer coding removed
  std::string peer;                           // "127.0.0.1:51234", "[::1]:51234", or "unix"
  std::string id;  // X-Request-Id as sent, or a new one; returned and logged
  // Memory of the body and of what is parsed out of it; lives as long as the request. For the
  // handler's thread.
  std::shared_ptr<MemoryCharge> memory;

  // Value of the first header of that name in any letter case; empty if there is none.
  std::string_view Header(std::string_view name) const;
};

// What the log line of a request says about tokens; nothing where `model` is empty.
struct ServedTokens {
  std::string model;
  int64_t prompt = 0, completion = 0, cached = 0;
  double first_token_seconds = -1;  // from the submission to the first token; −1: none came
};

class Exchange;
class MemoryBudget;

// Handle to exactly one response. Copies share it; every member may be called from any thread, also
// after the server has stopped. Calls that no longer make sense (the client is gone, the response
// has ended) do nothing. When the last copy goes away without an answer, the client gets a 500; a
// stream that was begun and never ended is cut off, so that the client does not take it for
// complete.
class Responder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange);

  // The whole response. `extra` must not name Content-Length, Transfer-Encoding or Connection.
  void Send(int status, std::string content_type, std::string_view body, Headers extra = {}) const;

  // Send() with a body made by ErrorBody (error_body.h); `code` and `param` may be empty.
  void SendError(int status, std::string_view message, std::string_view code = {},
                 std::string_view param = {}) const;
  void SendError(const Error& error) const;

  // A response of unknown length: BeginStream, any number of Writes, EndStream. "text/event-stream"
  // adds the headers that keep proxies from caching and buffering it.
  void BeginStream(int status, std::string content_type, Headers extra = {}) const;

  // Never blocks. If the client reads so slowly that more than ServerOptions::max_backlog_bytes
  // pile up, the connection is closed and the client counts as gone.
  void Write(std::string_view chunk) const;
  void EndStream() const;

  // Whether the client went away before the response was ended: whatever is still written is
  // dropped.
  bool Closed() const;

  // `callback` is called once if the client goes away (or the server closes its connection) before
  // Send or EndStream was called, and never after; on an I/O thread, or within this call if the
  // client is gone already. It must not block. A callback that holds a copy of the Responder keeps
  // the response open until answered.
  void OnClose(std::function<void()> callback) const;

  // Runs `job` on a worker thread, or within this call where there is none. For work on about
  // `bytes` bytes that must not hold up the calling thread.
  void Defer(size_t bytes, std::function<void()> job) const;
  const std::shared_ptr<MemoryBudget>& budget() const;  // null: no limit
  void Note(const ServedTokens& served) const;          // for the log; the last call counts

 private:
  struct Answer;  // shared by all copies: the last one to go sees to it that there is a response
  std::shared_ptr<Answer> answer_;
};

// Called on a worker thread where the request has a body, else on an I/O thread; must not block.
// May throw: an Error answers with the status of its kind,
// anything else with a 500 whose cause goes to the log only.
using Handler = std::function<void(std::shared_ptr<const Request>, Responder)>;

// Who may call a route.
enum class Access {
  kUser,     // with any key
  kControl,  // with the admin key, where there is one
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // a name or an address, IPv4 or IPv6; "0.0.0.0" or "::" for all
  int port = 0;                    // 0: any free one, see Server::port()
  std::string uds;                 // path of a Unix socket to listen on instead of host and port
  std::string root_path;           // prefix of every path that may be left out: "/api"; empty: none
  // PEM files; empty: no TLS.
  std::string ssl_certfile, ssl_keyfile, ssl_keyfile_password;
  int io_threads = 1;
  int worker_threads = 1;  // for large bodies and answers; small ones have a thread of their own

  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  size_t max_backlog_bytes = 8 << 20;  // written to a stream and not yet taken by its client
  size_t memory_bytes = 0;             // of all clients together (memory_budget.h); 0: no limit
  size_t max_connections = 4096;       // further ones get a 503, but for paths_without_key
  size_t max_waiting_bodies = 4096;    // requests that wait for a worker, of either size

  std::chrono::milliseconds idle_timeout{120'000};  // between two requests of one connection
  // For a request's header to arrive; a body gets this plus one second per 64 KiB received.
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds write_timeout{60'000};  // without the client taking a single byte
  std::chrono::milliseconds drain_timeout{30'000};  // Stop(): for responses in flight to finish

  // Clients send "Authorization: Bearer <key>" with one of these; empty: no key needed.
  std::vector<std::string> api_keys;
  std::string admin_api_key;  // good for all routes, and the only one for those of kControl
  // Exact paths; OPTIONS never needs a key.
  std::vector<std::string> paths_without_key = {"/health"};
  // Origins whose pages may call ("https://a.example", "*" for any), beside local ones and the
  // server's own (origins.h).
  std::vector<std::string> cors_origins;
  bool log_requests = false;  // a log line for each at level info instead of debug
};

// Listens, and calls the handler of each request's route. Route, Start and Stop belong to the
// owner's thread; the other members may be called from any.
class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // Stop without waiting for responses in flight

  // `path` is exact ("/v1/models") or ends in a parameter ("/v1/models/{id}") that takes the
  // non-empty rest of the path, slashes included: model names have them. An exact path goes first,
  // then the longest prefix. GET routes answer HEAD too, without the body. Before Start only.
  void Route(std::string method, std::string path, Handler handler, Access access = Access::kUser);

  // Binds and listens before it returns. Throws Resource if the port is in use, Invalid if the host
  // is unknown or an option is out of range.
  void Start();

  int port() const;  // the one bound; valid after Start

  // Refuses new connections from now on; open ones are served on, each to the end of its next
  // response.
  void StopAccepting();

  size_t open_requests() const;  // handed to a handler, response not yet wholly written

  // StopAccepting, closes idle connections, lets responses in flight finish for at most
  // drain_timeout, closes what is left (OnClose callbacks run) and joins the I/O threads. Not from
  // a handler. A second call does nothing.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::http
