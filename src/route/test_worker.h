// A worker behind the router, whose responses a test writes.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/format.h"
#include "route/route_server.h"
#include "server/http/http_server.h"

namespace switchyard::route {

using namespace std::chrono_literals;

using Answer = std::function<void(const http::Request&, const http::Responder&)>;

// A worker. Its answers can be replaced while it runs.
class Worker {
 public:
  explicit Worker(std::string name, int port = 0) : name_(std::move(name)) {
    http::ServerOptions options;
    options.port = port;
    options.drain_timeout = 0ms;
    server_ = std::make_unique<http::Server>(options);
    server_->Route("GET", "/health", [this](auto, const http::Responder& to) {
      healthy ? to.Send(200, "text/plain", "") : to.SendError(503, "loading");
    });
    for (const char* method : {"GET", "POST", "DELETE"})
      server_->Route(method, "/{path}", [this](auto request, const http::Responder& to) {
        ++requests;
        Answer answer;
        {
          const std::lock_guard lock(mutex_);
          answer = answer_;
        }
        if (answer)
          answer(*request, to);
        else
          to.Send(200, "application/json", "{\"worker\":\"" + name_ + "\"}");
      });
    server_->Start();
  }

  void Answers(Answer answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  int port() const { return server_->port(); }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port()); }
  void Stop() { server_->Stop(); }

  std::atomic<bool> healthy{true};
  std::atomic<int> requests{0};

 private:
  const std::string name_;
  std::mutex mutex_;
  Answer answer_;
  std::unique_ptr<http::Server> server_;
};

inline void Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(condition());
}

// The router counts an exchange as ended after it has sent the last bytes, so a client may be
// earlier.
inline bool NoneOpen(const RouteServer& router) {
  for (const WorkerState& worker : router.Workers())
    if (worker.open != 0) return false;
  return true;
}

}  // namespace switchyard::route
