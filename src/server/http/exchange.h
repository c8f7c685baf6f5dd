// One response in progress: a byte buffer between producer threads and the connection that writes
// the response.
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

// Shared by the Connection (until the response ends) and the Responder (while a copy exists).
// Implements the framing and is independent of sockets. Producer members may be called from any
// thread, connection members from the connection's strand.
class Exchange {
 public:
  struct Options {
    bool head = false;                // HEAD request: send headers without a body
    bool chunked = true;              // the client supports chunked coding (HTTP/1.1)
    bool keep_alive = true;           // the connection can serve another request
    Headers headers;                  // added to every response
    size_t max_backlog = ~size_t{0};  // maximum bytes that are written to a stream and not yet sent
    std::shared_ptr<MemoryBudget> budget;  // for unsent bytes; null: no limit
    std::shared_ptr<WorkerPool> workers;   // null: Defer runs a job within the call
    std::shared_ptr<const TraceContext> trace;
    // Maximum bytes of the payload that are kept for an observer; fewer if the budget is exhausted.
    size_t kept_bytes = 0;
  };
  enum class State {
    kOpen,   // more bytes may follow
    kEnded,  // the response is complete
    kCut,    // the response ended incomplete: close the connection
  };
  struct Output {
    std::string bytes;
    State state;  // state after these bytes are written
  };

  // Calls `wake`, under the exchange's lock, when Take() has new output. `wake` must not do more
  // than notify the connection.
  Exchange(Options options, std::function<void()> wake);

  // Producer side: see Responder.
  void Send(int status, std::string content_type, std::string_view body, Headers extra);
  void BeginStream(int status, std::string content_type, Headers extra);
  void Write(std::string_view chunk);
  void EndStream();
  bool Closed() const;
  size_t Unsent() const;
  void OnClose(std::function<void()> callback);
  void Defer(size_t bytes, std::function<void()> job);
  const std::shared_ptr<MemoryBudget>& budget() const { return options_.budget; }
  const std::shared_ptr<const TraceContext>& trace() const { return options_.trace; }
  void Note(const ServedTokens& served);
  void NoteHint(const std::string& hint);
  // Call when the last Responder is destroyed. If nothing was sent, sends a 500. If a stream has
  // begun, cuts it off.
  void Abandon();

  // Connection side. Returns the next bytes to write. Call it only after the bytes of the previous
  // call have been written.
  Output Take();
  // Whether the backlog or the memory limit was exceeded. The connection must then close and
  // interrupt a write in progress.
  bool Overflowed() const;
  // Adds bytes that clients ignore, if the state of the response allows it: an interim response
  // before the head, or a comment between the events of a stream. If the client has closed its
  // whole socket, and not only its sending side, these bytes cause a connection reset.
  void Probe();
  // Adds a comment to an event stream that has begun, unless events still wait to be sent.
  void Comment(std::string_view text);
  // Closes the connection after this response, unless keep-alive was already sent in its head.
  void DisableKeepAlive();
  bool keep_alive() const;  // whether the response head allows another request
  int status() const;       // 0 before the head
  ServedTokens served() const;
  std::string hint() const;  // of the error that was sent; empty: none
  // The kept part of the payload, from its beginning. `truncated`: whether there is more.
  std::string TakeKept(bool* truncated);
  // Detaches the connection: `wake` is not called after this. If the producer has not ended the
  // response, the OnClose callbacks run as if the client had disconnected.
  void Close();

 private:
  using Callbacks = std::vector<std::function<void()>>;

  bool Begin(int status, std::string content_type, Headers extra, const size_t* length);
  // Ends the response and returns its OnClose callbacks. The caller must destroy the callbacks
  // after it has released the lock: they may hold the last Responder, whose destructor takes the
  // lock.
  [[nodiscard]] Callbacks End(State state);
  void AppendChunk(std::string_view chunk);
  void Overflow();
  void Keep(std::string_view payload);

  const Options options_;
  mutable std::mutex mutex_;  // guards all members below
  std::function<void()> wake_;
  bool keep_alive_;
  int status_ = 0;
  State state_ = State::kOpen;
  bool streaming_ = false, event_stream_ = false;
  bool gone_ = false;
  bool overflowed_ = false;
  int probes_ = 0;
  ServedTokens served_;
  std::string hint_;
  std::string kept_;
  bool kept_truncated_ = false;
  MemoryCharge kept_charge_;  // for kept_
  std::string pending_;       // not yet returned by Take()
  size_t in_flight_ = 0;      // number of bytes returned by the last Take()
  MemoryCharge charge_;       // for pending_ and the bytes in flight
  Callbacks on_close_;
};

}  // namespace switchyard::http
