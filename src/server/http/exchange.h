// One response under way: the bytes between the threads that produce it and the connection that
// writes it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/memory_budget.h"
#include "server/http/worker_pool.h"

namespace switchyard::http {

// Shared by the Connection, for as long as the response is under way, and the Responder, for as
// long as a copy of it exists. Knows framing, not sockets. The producer's members are called from
// any thread, the connection's from its strand.
class Exchange {
 public:
  struct Options {
    bool head = false;                // the request was HEAD: the head of the response and no body
    bool chunked = true;              // the client understands chunks (HTTP/1.1)
    bool keep_alive = true;           // the connection could serve another request
    Headers headers;                  // added to every response
    size_t max_backlog = ~size_t{0};  // bytes written to a stream and not yet taken by the client
    std::shared_ptr<MemoryBudget> budget;  // of what waits to be written; null: no limit
    std::shared_ptr<WorkerPool> workers;   // null: Defer runs a job at once
  };
  enum class State {
    kOpen,   // more bytes may come
    kEnded,  // the response is complete
    kCut,    // no more bytes, yet the response is incomplete: close the connection
  };
  struct Output {
    std::string bytes;
    State state;  // after these bytes
  };

  // `wake` is called, under the exchange's lock, when Take() has something new; it must only hand
  // on the news.
  Exchange(Options options, std::function<void()> wake);

  // Producer's side: see Responder.
  void Send(int status, std::string content_type, std::string_view body, Headers extra);
  void BeginStream(int status, std::string content_type, Headers extra);
  void Write(std::string_view chunk);
  void EndStream();
  bool Closed() const;
  void OnClose(std::function<void()> callback);
  void Defer(size_t bytes, std::function<void()> job);
  const std::shared_ptr<MemoryBudget>& budget() const { return options_.budget; }
  void Note(const ServedTokens& served);
  // The last Responder is gone: a 500 if nothing was sent, a cut if a stream was begun.
  void Abandon();

  // Connection's side. Take() returns what is to be written next, and says thereby that what it
  // returned before has been written.
  Output Take();
  // The backlog went over its limit: the connection must be closed, a write under way interrupted.
  bool Overflowed() const;
  // Adds bytes that a client ignores, where the response has a place for them: an interim response
  // before its head, a comment between the events of a stream. A client that has closed its whole
  // socket, and not only its sending side, resets the connection when they arrive.
  void Probe();
  // The connection is to end with this response, unless its head has promised otherwise already.
  void DisableKeepAlive();
  bool keep_alive() const;  // what the head says
  int status() const;       // 0 before the head was sent
  ServedTokens served() const;
  // The connection has done with this exchange: no wake() from here on. If the producer had not
  // ended the response, the client counts as gone and the OnClose callbacks run.
  void Close();

 private:
  using Callbacks = std::vector<std::function<void()>>;

  bool Begin(int status, std::string content_type, Headers extra, const size_t* length);
  // Returns the callbacks that no longer matter, to be destroyed once the lock is released: they
  // may hold the last Responder, whose end takes the lock again.
  [[nodiscard]] Callbacks End(State state);
  void AppendChunk(std::string_view chunk);
  void Overflow();

  const Options options_;
  mutable std::mutex mutex_;  // guards all below
  std::function<void()> wake_;
  bool keep_alive_;
  int status_ = 0;
  State state_ = State::kOpen;
  bool streaming_ = false, event_stream_ = false;
  bool gone_ = false;
  bool overflowed_ = false;
  int probes_ = 0;
  ServedTokens served_;
  std::string pending_;   // not yet taken
  size_t in_flight_ = 0;  // bytes taken last
  MemoryCharge charge_;   // of both
  Callbacks on_close_;
};

}  // namespace switchyard::http
