#include "server/http/responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <iterator>
#include <string_view>
#include <utility>

namespace switchyard::http {
namespace {

void AppendHeader(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (char c : value) out += (c == '\r' || c == '\n' || c == '\0') ? ' ' : c;
  out += "\r\n";
}

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

std::string Serialize(const ResponseHead& head) {
  namespace beast_http = boost::beast::http;
  const auto reason = beast_http::obsolete_reason(beast_http::int_to_status(head.status));
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", head.status,
                                std::string_view(reason.data(), reason.size()));
  AppendHeader(out, "Date", Date());
  AppendHeader(out, "Server", "switchyard");
  if (!head.content_type.empty()) AppendHeader(out, "Content-Type", head.content_type);
  if (head.length) AppendHeader(out, "Content-Length", fmt::to_string(*head.length));
  if (head.chunked) AppendHeader(out, "Transfer-Encoding", "chunked");
  AppendHeader(out, "Connection", head.keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : head.extra) AppendHeader(out, name, value);
  out += "\r\n";
  return out;
}

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
