// A connection between a prefill and a decode worker, with a thread for each direction.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/net/tcp.h"
#include "server/disaggregation/kv_messages.h"

namespace switchyard {

// `Post` and `Close` may be called from any thread and return immediately. The connection has a
// reader's and a writer's thread. The owner destroys it on a third thread.
class KvConnection {
 public:
  struct Events {
    // On the reader's thread, for each message. May receive further bytes from the stream. An Error
    // ends the connection.
    std::function<void(const KvMessage&, TcpStream&)> on_message;
    // Once, when the connection has ended, on the reader's thread. `why` names the cause.
    std::function<void(const std::string& why)> on_end;
  };
  // Sends something on the writer's thread. An Error ends the connection.
  using Job = std::function<void(TcpStream&)>;

  // `timeout`: longest time in which the peer accepts no byte. `peer`: its name in errors.
  KvConnection(TcpStream stream, std::string peer, std::chrono::milliseconds timeout);
  ~KvConnection();
  void Start(Events events);
  void Stop();  // closes the connection and joins its threads; call it on another thread

  void Post(const KvMessage& message);
  void Post(Job job);
  void Close(const std::string& why);
  bool ended() const { return ended_; }  // both threads are about to end
  const std::string& peer() const { return peer_; }
  IoLimit limit() const;  // time limit of one transfer

 private:
  void Read();
  void Write();

  TcpStream stream_;
  const std::string peer_;
  const std::chrono::milliseconds timeout_;
  Events events_;
  std::atomic<bool> ended_{false};

  std::mutex mutex_;  // guards the members down to closed_
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool closed_ = false;
  std::string why_;

  std::thread reader_, writer_;
};

}  // namespace switchyard
