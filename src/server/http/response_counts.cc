#include "server/http/response_counts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace switchyard::http {
namespace {

constexpr std::string_view kMethods[] = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                         "PATCH",  "POST", "PUT"};

}  // namespace

void ResponseCounts::Add(std::string_view route, std::string_view method, int status) {
  const bool known = std::ranges::find(kMethods, method) != std::end(kMethods);
  ResponseKind kind{.route = std::string(route.empty() ? "unmatched" : route),
                    .method = std::string(known ? method : "other"),
                    .status = status};
  std::lock_guard lock(mutex_);
  ++counts_[std::move(kind)];
}

std::map<ResponseKind, uint64_t> ResponseCounts::Read() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace switchyard::http
