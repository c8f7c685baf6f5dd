// The answer to a query of the front, awaited with a limit.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "core/error.h"

namespace switchyard::page {

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

}  // namespace switchyard::page
