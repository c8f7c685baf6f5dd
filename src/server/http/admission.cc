#include "server/http/admission.h"

#include <strings.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/http/request_target.h"

namespace switchyard::http {
namespace {

constexpr std::string_view kBearer = "bearer ";

// Takes the same time wherever the two differ, so that a key cannot be guessed byte by byte.
bool SameSecret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  }
  return difference == 0;
}

bool HasKey(const ServerOptions& options, const Request& request) {
  const auto& open = options.paths_without_key;
  if (options.api_key.empty() || std::find(open.begin(), open.end(), request.path) != open.end()) {
    return true;
  }
  const std::string_view given = request.Header("Authorization");
  return given.size() > kBearer.size() &&
         strncasecmp(given.data(), kBearer.data(), kBearer.size()) == 0 &&
         SameSecret(given.substr(kBearer.size()), options.api_key);
}

// A browser asks before it sends a request to another origin (WHATWG Fetch, "CORS-preflight
// request"). The headers it names are sent back, because "*" would not cover Authorization.
Admission AnswerOptions(const ServerOptions& options, const Request& request,
                        const std::string& allow) {
  Admission answer{.status = 204};
  answer.headers.emplace_back("Allow", allow);
  if (options.allow_cors) {
    const std::string_view asked = request.Header("Access-Control-Request-Headers");
    answer.headers.emplace_back("Access-Control-Allow-Methods", allow);
    answer.headers.emplace_back("Access-Control-Allow-Headers",
                                asked.empty() ? "Authorization, Content-Type" : std::string(asked));
    answer.headers.emplace_back("Access-Control-Max-Age", "86400");
  }
  return answer;
}

}  // namespace

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

  const bool preflight = request.method == "OPTIONS";
  if (preflight && request.path == "*") {
    return AnswerOptions(options, request, "GET, HEAD, POST, OPTIONS");
  }
  if (!preflight && !HasKey(options, request)) {
    return Admission::Refuse(
        401, "The API key is missing or wrong: send the header \"Authorization: Bearer <key>\"",
        "invalid_api_key", {{"WWW-Authenticate", "Bearer"}});
  }
  Router::Match match = router.Find(request.method, request.path);
  if (match.handler != nullptr) {
    request.params = std::move(match.params);
    return {.handler = match.handler};
  }
  if (match.allow.empty()) {
    return Admission::Refuse(404, "Nothing is served at " + request.path, "unknown_path");
  }
  if (preflight) return AnswerOptions(options, request, match.allow);
  return Admission::Refuse(
      405, request.path + " does not take " + request.method + ", only " + match.allow,
      "method_not_allowed", {{"Allow", match.allow}});
}

}  // namespace switchyard::http
