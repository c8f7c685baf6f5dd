// Numbers of responses by route, method and status.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace switchyard::http {

struct ResponseKind {
  std::string route;  // as registered, such as "/v1/models/{id}"; "unmatched" for other paths
  // "other" for a method that no route uses, so that clients cannot add entries.
  std::string method;
  int status = 0;
  auto operator<=>(const ResponseKind&) const = default;
};

// Counts responses. Thread-safe. Takes its lock once per response, not for each event of a stream.
class ResponseCounts {
 public:
  // `route` may be empty: no route has the path.
  void Add(std::string_view route, std::string_view method, int status);
  // Begins the counts of a route at 0, for the statuses that dashboards and alerts watch. Otherwise
  // a count would begin with its first response, which a rate over time then misses.
  void Begin(std::string_view route, std::string_view method);
  std::map<ResponseKind, uint64_t> Read() const;

 private:
  mutable std::mutex mutex_;
  std::map<ResponseKind, uint64_t> counts_;
};

}  // namespace switchyard::http
