// Snapshots of the server for the web page.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/request.h"
#include "server/front/service.h"

namespace switchyard::page {

// The answer to a query of the front, awaited with a limit.

// At most one query is open at a time. One thread at a time.
template <typename T>
class Answer {
 public:
  using Callback = std::function<void(const T&)>;

  // Calls `ask`, unless the last query is still open.
  void Ask(const std::function<void(Callback)>& ask) {
    if (future_.valid()) return;
    const auto promise = std::make_shared<std::promise<T>>();
    future_ = promise->get_future();
    try {
      ask([promise](const T& value) { promise->set_value(value); });
    } catch (const Error&) {  // the ranks are lost
      future_ = {};
    }
  }

  // Returns nullopt if there is no answer before `end`. The query then stays open.
  std::optional<T> Take(std::chrono::steady_clock::time_point end) {
    if (!future_.valid() || future_.wait_until(end) != std::future_status::ready)
      return std::nullopt;
    try {
      return future_.get();
    } catch (const std::future_error&) {  // the query was dropped
      return std::nullopt;
    }
  }

 private:
  std::future<T> future_;
};

// What the page shows of the server, as JSON.

// Makes snapshots of the service. One thread at a time.
class Snapshots {
 public:
  explicit Snapshots(Service& service) : service_(service) {}

  // One snapshot, described in docs/page.md. Waits up to two seconds for the ranks; parts without
  // an answer are null. The counts and the placement of experts are absent if they have not
  // changed, unless `whole`.
  std::string Make(bool whole);

 private:
  Service& service_;
  Answer<std::vector<EngineStats>> stats_;
  Answer<ExpertLoadReport> load_;
  Answer<EplbReport> eplb_;
  int64_t last_passes_ = -1;  // of the last counts that were sent
  // Whether the placement must be sent; layers that had moved when it was last sent.
  bool needs_placement_ = true;
  int64_t last_moved_ = -1;
};

}  // namespace switchyard::page
