// The HTTP/1.1 server: routes, requests, and asynchronous responses from any thread.
//
// One Connection per client runs on an I/O thread. It serves its requests strictly one after
// another, so pipelined requests are answered in order. The server calls a handler once the whole
// request body has been read. The handler keeps the Responder and returns immediately. The
// connection keeps reading during a response, so that it detects a disconnect promptly even if no
// data is being written.
//
// I/O threads only transfer bytes. Handlers of requests with a body run on worker threads of lower
// priority, with separate threads for small and large bodies (worker_pool.h). One limit covers the
// memory held for all clients (memory_budget.h).
//
// A client that closes its sending side (FIN) still gets its response. But a client that closes its
// whole socket also sends only a FIN at first. To tell the two apart, the connection sends bytes
// that clients ignore (Exchange::Probe). If the socket is closed, the client's kernel replies with
// a reset.
#pragma once

#include <atomic>
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

class MemoryCharge;     // memory_budget.h
class RequestObserver;  // served_request.h
struct TraceContext;    // served_request.h

// One complete request. Immutable once it is passed to a handler.
struct Request {
  std::string method;                         // as sent: "GET", "POST"; case-sensitive
  std::string path;                           // percent-decoded, without the query; begins with '/'
  std::map<std::string, std::string> query;   // decoded; the last value of a repeated name
  std::map<std::string, std::string> params;  // {name} in the route -> decoded part of the path
  Headers headers;                            // in the order in which the client sent them
  std::string body;                           // complete, transfer coding removed
  std::string peer;                           // "127.0.0.1:51234", "[::1]:51234", or "unix"
  std::string id;  // X-Request-Id as sent, or a generated id; returned and logged
  std::shared_ptr<const TraceContext> trace;  // null: the request is not traced
  // Memory charge of the body and of data parsed from it; lives as long as the request. Use it on
  // the handler's thread only.
  std::shared_ptr<MemoryCharge> memory;

  // Value of the first header with this name (case-insensitive); empty if absent.
  std::string_view Header(std::string_view name) const;
};

// Token counts for the log line of a request. They are not logged if `model` is empty.
struct ServedTokens {
  std::string model;
  std::string response_id;  // the id in the response; may be empty
  int64_t prompt = 0, completion = 0, cached = 0;
  double first_token_seconds = -1;  // from submission to the first token; −1: no token
};

class Exchange;
class MemoryBudget;
class ResponseCounts;
class Router;

// Handle to one response, shared by its copies. Every member may be called from any thread, also
// after the server has stopped. Calls have no effect after the client has disconnected or the
// response has ended. If the last copy is destroyed before a response was sent, the client gets a
// 500. A stream without EndStream is then cut off, so that the client detects an incomplete
// response.
class Responder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange);

  // Sends the complete response. `extra` must not name Content-Length, Transfer-Encoding or
  // Connection.
  void Send(int status, std::string content_type, std::string_view body, Headers extra = {}) const;

  // Sends a body made by ErrorBody (error_body.h), without the directories of absolute paths
  // (error_body.h). `code` and `param` may be empty.
  void SendError(int status, std::string_view message, std::string_view code = {},
                 std::string_view param = {}) const;
  // As above, and notes the hint for callers in this process. It is part of the message in any
  // case, so clients get no separate field.
  void SendError(const Error& error) const;
  void NoteHint(const std::string& hint) const;

  // Sends a response of unknown length: BeginStream, any number of Writes, EndStream. With
  // "text/event-stream", adds the headers that prevent caching and buffering in proxies.
  void BeginStream(int status, std::string content_type, Headers extra = {}) const;

  // Never blocks. If more than ServerOptions::max_backlog_bytes are waiting for a slow client, or
  // the memory limit is reached, the connection is closed as if the client had disconnected.
  void Write(std::string_view chunk) const;
  void EndStream() const;

  // Whether the client disconnected before the end of the response. Further writes are dropped.
  bool Closed() const;

  // Number of bytes written and not yet sent to the client.
  size_t Unsent() const;

  // Calls `callback` once if the client disconnects, or the server closes the connection, before
  // Send or EndStream. Runs on an I/O thread, or within this call if the client has already
  // disconnected. `callback` must not block. A callback that holds a copy of the Responder keeps
  // the response open until Send or EndStream.
  void OnClose(std::function<void()> callback) const;

  // Runs `job` on a worker thread, or within this call if there are no workers. Use it for work
  // that must not block the calling thread. `bytes`: approximate size of the data, which selects
  // the worker lane.
  void Defer(size_t bytes, std::function<void()> job) const;
  const std::shared_ptr<MemoryBudget>& budget() const;       // null: no limit
  const std::shared_ptr<const TraceContext>& trace() const;  // of the request; null: not traced
  // Sets the counts for the log line; a later call replaces them.
  void Note(const ServedTokens& served) const;

 private:
  struct Answer;  // shared by all copies; its destructor ends an unfinished response
  std::shared_ptr<Answer> answer_;
};

// Called on a worker thread if the request has a body, otherwise on an I/O thread. Must not block.
// May throw: an Error gives the status of its kind. Any other exception gives a 500, and its
// message is only logged.
using Handler = std::function<void(std::shared_ptr<const Request>, Responder)>;

// Which key a route requires, if keys are configured.
enum class Access {
  kUser,     // any API key, or the admin key
  kControl,  // the admin key; if none is configured, the same as kUser
};

// Settings of the log lines of requests, which may change while the server runs.
struct RequestLog {
  std::atomic<bool> enabled{false};  // logs each request at level info instead of debug
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // host name, IPv4 or IPv6 address; "0.0.0.0", "::": all
  int port = 0;                    // 0: any free port, see Server::port()
  std::string uds;                 // path of a Unix socket to listen on instead of host and port
  std::string root_path;           // optional prefix of every path, e.g. "/api"; empty: none
  // PEM files; empty: no TLS.
  std::string ssl_certfile, ssl_keyfile, ssl_keyfile_password;
  int io_threads = 1;
  // Threads for large bodies and responses; one additional thread serves small ones.
  int worker_threads = 1;

  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  size_t max_backlog_bytes = 8 << 20;  // maximum bytes written to a stream and not yet sent
  size_t memory_bytes = 0;        // limit for all clients together (memory_budget.h); 0: no limit
  size_t max_connections = 4096;  // further connections get a 503, except for paths_without_key
  size_t max_waiting_bodies = 4096;  // maximum queued requests per worker lane

  // Maximum time between two requests on one connection.
  std::chrono::milliseconds idle_timeout{120'000};
  // Time to receive a request header. A body gets one more second for each 64 KiB received.
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds write_timeout{60'000};  // time without any byte sent to the client
  std::chrono::milliseconds drain_timeout{30'000};  // how long Stop() waits for responses in flight

  // Accepted in "Authorization: Bearer <key>"; empty: no key required.
  std::vector<std::string> api_keys;
  std::string admin_api_key;  // accepted on all routes; if set, required for kControl
  // Paths that require no key, compared exactly. OPTIONS never requires a key.
  std::vector<std::string> paths_without_key = {"/health"};
  // Origins whose pages may call the server ("https://a.example"; "*": any), in addition to local
  // origins and the server's own origin (admission.h).
  std::vector<std::string> cors_origins;
  bool log_requests = false;                      // log each request at level info instead of debug
  std::shared_ptr<const RequestLog> request_log;  // replaces log_requests; null: log_requests
  std::shared_ptr<RequestObserver> observer;      // gets all served requests; null: none
};

// Listens, and calls the handler of each request's route. Call Route, Start and Stop from the
// owner's thread; the other members from any thread.
class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // stops without waiting for responses in flight

  // `path` is exact ("/v1/models") or ends in a parameter ("/v1/models/{id}"). A parameter matches
  // the non-empty rest of the path including slashes, because model names contain slashes. An
  // exact match has priority over the longest prefix. GET routes also serve HEAD, without the
  // body. Call before Start.
  void Route(std::string method, std::string path, Handler handler, Access access = Access::kUser);

  // Binds and listens before it returns. Throws Error: kResource if the port is in use, kInvalid if
  // the host is unknown or an option is out of range.
  void Start();

  int port() const;  // the bound port; valid after Start

  // Refuses new connections. Each open connection is closed after its next response.
  void StopAccepting();

  // Writes a comment to every event stream that has begun and has no unsent events. Clients ignore
  // comments; proxies then do not close the stream.
  void CommentStreams(const std::string& text);

  size_t open_requests() const;  // requests passed to a handler whose response is not complete
  // Counts of ended responses on accepted connections. Includes responses whose client
  // disconnected, if their head was produced.
  const ResponseCounts& responses() const;
  const Router& router() const;  // constant after Start

  // Calls StopAccepting and closes idle connections. Waits at most drain_timeout for responses in
  // flight, then closes the remaining connections (OnClose callbacks run) and joins the I/O
  // threads. Must not be called from a handler. A second call has no effect.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::http
