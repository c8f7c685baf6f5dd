// The HTTP/1.1 server: routes, requests, and responses that any thread may answer at any time.
//
// One Connection per client runs on an I/O thread and serves its requests strictly one after
// another, so that pipelined requests are answered in order. A handler is called once the whole
// request body has been read; it keeps the Responder and returns at once. While the response is
// under way the connection keeps reading, so that a client which hangs up is noticed promptly even
// when nothing is being written.
//
// A client that closes its sending side (FIN) counts as gone, also when it could still read: HTTP
// clients do not half-close, and a hang-up looks exactly the same.
#pragma once

#include <chrono>
#include <cstddef>
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

// One request, whole and immutable once a handler sees it.
struct Request {
  std::string method;                         // as sent: "GET", "POST"; case matters
  std::string path;                           // percent-decoded, without the query; begins with '/'
  std::map<std::string, std::string> query;   // decoded; of a repeated name the last value
  std::map<std::string, std::string> params;  // {name} of the route -> what stood there, decoded
  Headers headers;                            // in the order sent
  std::string body;                           // whole, any transfer coding removed
  std::string peer;                           // "127.0.0.1:51234", "[::1]:51234"

  // Value of the first header of that name in any letter case; empty if there is none.
  std::string_view Header(std::string_view name) const;
};

class Exchange;

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

 private:
  struct Answer;  // shared by all copies: the last one to go sees to it that there is a response
  std::shared_ptr<Answer> answer_;
};

// Called on an I/O thread; must not block. May throw: an Error answers with the status of its kind,
// anything else with a 500 whose cause goes to the log only.
using Handler = std::function<void(std::shared_ptr<const Request>, Responder)>;

struct ServerOptions {
  std::string host = "127.0.0.1";  // a name or an address, IPv4 or IPv6; "0.0.0.0" or "::" for all
  int port = 0;                    // 0: any free one, see Server::port()
  int io_threads = 1;

  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  size_t max_backlog_bytes = 8 << 20;  // written to a stream and not yet taken by its client
  size_t max_connections = 4096;       // further ones get a 503 and are closed

  std::chrono::milliseconds idle_timeout{120'000};  // between two requests of one connection
  // For a request's header to arrive; a body gets this plus one second per 64 KiB received.
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds write_timeout{60'000};  // without the client taking a single byte
  std::chrono::milliseconds drain_timeout{30'000};  // Stop(): for responses in flight to finish

  std::string api_key;  // clients send "Authorization: Bearer <key>"; empty: no key needed
  std::vector<std::string> paths_without_key = {
      "/health"};             // exact paths; OPTIONS never needs a key
  bool allow_cors = true;     // any origin, "*"
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
  void Route(std::string method, std::string path, Handler handler);

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
