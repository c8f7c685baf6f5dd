#include "server/http/response_counts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace switchyard::http {
namespace {

constexpr std::string_view kMethods[] = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                         "PATCH",  "POST", "PUT"};

// 429: the queue is full. 500: a defect. 503: the server does not serve, or a limit is reached.
constexpr int kWatched[] = {200, 429, 500, 503};

ResponseKind KindOf(std::string_view route, std::string_view method, int status) {
  const bool known = std::ranges::find(kMethods, method) != std::end(kMethods);
  return {.route = std::string(route.empty() ? "unmatched" : route),
          .method = std::string(known ? method : "other"),
          .status = status};
}

}  // namespace

void ResponseCounts::Add(std::string_view route, std::string_view method, int status) {
  ResponseKind kind = KindOf(route, method, status);
  std::lock_guard lock(mutex_);
  ++counts_[std::move(kind)];
}

void ResponseCounts::Begin(std::string_view route, std::string_view method) {
  std::lock_guard lock(mutex_);
  for (const int status : kWatched) counts_[KindOf(route, method, status)];
}

std::map<ResponseKind, uint64_t> ResponseCounts::Read() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace switchyard::http
