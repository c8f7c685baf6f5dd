#include "server/http/admission.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/http/origins.h"
#include "server/http/request_target.h"

namespace switchyard::http {
namespace {

constexpr std::string_view kBearer = "bearer ";

// Constant-time comparison, so that a key cannot be guessed byte by byte.
bool SameSecret(std::string_view given, std::string_view secret) {
  return !secret.empty() && given.size() == secret.size() &&
         CRYPTO_memcmp(given.data(), secret.data(), secret.size()) == 0;
}

std::string_view GivenKey(const Request& request) {
  const std::string_view given = request.Header("Authorization");
  if (given.empty()) return request.Header("x-api-key");  // header of Anthropic's clients
  const bool is_bearer = given.size() > kBearer.size() &&
                         strncasecmp(given.data(), kBearer.data(), kBearer.size()) == 0;
  return is_bearer ? given.substr(kBearer.size()) : std::string_view();
}

bool HasKey(const ServerOptions& options, const Request& request) {
  if (options.api_keys.empty() || IsPublicPath(options, request.path)) return true;
  const std::string_view given = GivenKey(request);
  bool same = SameSecret(given, options.admin_api_key);
  for (const std::string& key : options.api_keys) same |= SameSecret(given, key);
  return same;
}

Admission RefuseKey(int status, std::string message) {
  Headers headers;
  if (status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  return Admission::Refuse(status, std::move(message), "invalid_api_key", std::move(headers));
}

// Responds to OPTIONS. For pages of allowed origins, this is the response to a CORS preflight
// request (WHATWG Fetch, "CORS-preflight request"). It allows exactly the headers that the browser
// names, because "*" would not cover Authorization.
Admission AnswerOptions(OriginKind origin, const Request& request, const std::string& allow) {
  Admission answer{.status = 204};
  answer.headers.emplace_back("Allow", allow);
  if (origin == OriginKind::kAllowed) {
    const std::string_view asked = request.Header("Access-Control-Request-Headers");
    answer.headers.emplace_back("Access-Control-Allow-Methods", allow);
    answer.headers.emplace_back("Access-Control-Allow-Headers",
                                asked.empty() ? "Authorization, Content-Type" : std::string(asked));
    answer.headers.emplace_back("Access-Control-Max-Age", "86400");
  }
  return answer;
}

// Removes the prefix `root` from `path`, if present.
void StripRoot(const std::string& root, std::string& path) {
  if (root.empty() || !path.starts_with(root)) return;
  if (path.size() == root.size()) {
    path = "/";
  } else if (path[root.size()] == '/') {
    path.erase(0, root.size());
  }
}

}  // namespace

bool IsPublicPath(const ServerOptions& options, const std::string& path) {
  const auto& open = options.paths_without_key;
  return std::find(open.begin(), open.end(), path) != open.end();
}

Admission Admission::Refuse(int status, std::string message, std::string code, Headers headers) {
  return {.handler = nullptr,
          .status = status,
          .message = std::move(message),
          .code = std::move(code),
          .headers = std::move(headers)};
}

Admission Admit(const ServerOptions& options, const Router& router, std::string_view target,
                Request& request) {
  std::optional<RequestTarget> parsed = ParseTarget(target);
  if (!parsed) {
    return Admission::Refuse(400, "The request target is malformed: want a path such as /v1/models",
                             "malformed_request");
  }
  request.path = std::move(parsed->path);
  request.query = std::move(parsed->query);
  StripRoot(options.root_path, request.path);

  const OriginKind origin =
      ClassifyOrigin(options, request.Header("Origin"), request.Header("Host"));
  const bool preflight = request.method == "OPTIONS";
  if (preflight && request.path == "*") {
    return AnswerOptions(origin, request, "GET, HEAD, POST, OPTIONS");
  }
  const bool reads = preflight || request.method == "GET" || request.method == "HEAD";
  if (origin == OriginKind::kForeign && !reads) {
    return Admission::Refuse(403,
                             "Pages of " + std::string(request.Header("Origin")) +
                                 " may not call this server (see --cors-allow-origins)",
                             "origin_not_allowed");
  }
  if (!preflight && !HasKey(options, request)) {
    return RefuseKey(
        401, "The API key is missing or wrong: send the header \"Authorization: Bearer <key>\"");
  }
  Router::Match match = router.Find(request.method, request.path);
  if (match.handler != nullptr) {
    if (match.access == Access::kControl && !options.admin_api_key.empty() &&
        !SameSecret(GivenKey(request), options.admin_api_key)) {
      return RefuseKey(GivenKey(request).empty() ? 401 : 403,
                       request.path + " requires the key of --admin-api-key");
    }
    request.params = std::move(match.params);
    return {.handler = match.handler};
  }
  if (match.allow.empty()) {
    return Admission::Refuse(404, "Nothing is served at " + request.path, "unknown_path");
  }
  if (preflight) return AnswerOptions(origin, request, match.allow);
  return Admission::Refuse(
      405, request.path + " does not support " + request.method + ", only " + match.allow,
      "method_not_allowed", {{"Allow", match.allow}});
}

}  // namespace switchyard::http
