// The web page of a server, and the feed of its snapshots.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::page {

// The stream of snapshots behind GET /dashboard/events.

// Makes one snapshot per interval for all listeners, on a thread of its own. Makes none while there
// are no listeners. Thread-safe.
class Feed {
 public:
  struct Options {
    std::chrono::milliseconds interval{1000};
    size_t max_listeners = 16;
    // A listener skips snapshots while earlier ones are unsent. After this many skipped snapshots
    // in a row, its stream is cut off.
    int max_skipped = 10;
  };
  // Returns the data of one event. `whole`: also data that has not changed since the last call,
  // because a listener is new.
  using Make = std::function<std::string(bool whole)>;

  Feed(Make make, Options options);
  ~Feed();  // as Stop
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Begins the stream and adds the listener. False if there are too many, or after Stop; nothing
  // is sent then.
  bool Add(const http::Responder& listener);
  // Ends all streams and waits until the last snapshot is made.
  void Stop();

  size_t listeners() const;   // with those that have disconnected since the last snapshot
  int64_t snapshots() const;  // made so far

 private:
  struct Listener {
    http::Responder responder;
    int skipped = 0;
  };
  void Run();
  void DropClosed();                       // requires mutex_
  void Send(const std::string& snapshot);  // requires mutex_

  const Make make_;
  const Options options_;
  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable wake_;
  std::vector<Listener> listeners_;
  bool newcomers_ = false, stopping_ = false;
  int64_t snapshots_ = 0;
  std::thread thread_;  // last: it uses the other members
};

// The web page: chat, and the live view of experts, batches and latencies.

// Paths of the page and its files. They contain no data of the server, so they need no API key.
std::vector<std::string> Paths();

// Adds the routes of the page: "/" and its files, and GET /dashboard/events, a stream of snapshots.
// Call Stop() of the result before the server's Stop, and before the end of the ranks.
std::shared_ptr<Feed> Register(http::Server& server, Service& service,
                               Feed::Options options = Feed::Options());

}  // namespace switchyard::page
