#include "server/http/admission.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/http/error_body.h"
#include "server/http/request_parser.h"

namespace switchyard::http {
namespace {

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Returns the host name: "http://localhost:8000" -> "localhost", "[::1]:80" -> "[::1]".
std::string_view NameOf(std::string_view host) {
  if (const size_t scheme = host.find("://"); scheme != std::string_view::npos) {
    host.remove_prefix(scheme + 3);
  }
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool IsIpv4(std::string_view name, in_addr* address) {
  return inet_pton(AF_INET, std::string(name).c_str(), address) == 1;
}

bool IsLocal(std::string_view name) {
  in_addr address{};
  if (IsIpv4(name, &address)) return ntohl(address.s_addr) >> 24 == 127;
  constexpr std::string_view kUnder = ".localhost";
  return Same(name, "localhost") || name == "[::1]" ||
         (name.size() > kUnder.size() && Same(name.substr(name.size() - kUnder.size()), kUnder));
}

bool IsOwn(const ServerOptions& options, std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  if (host.empty() || scheme == std::string_view::npos) return false;
  if (!Same(origin.substr(scheme + 3), host)) return false;
  const std::string_view name = NameOf(host);
  in_addr ignored{};
  return !options.api_keys.empty() || name.starts_with('[') || IsIpv4(name, &ignored) ||
         name.find('.') == std::string_view::npos;
}

}  // namespace

OriginKind ClassifyOrigin(const ServerOptions& options, std::string_view origin,
                          std::string_view host) {
  if (origin.empty()) return OriginKind::kNone;
  const auto& listed = options.cors_origins;
  const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const std::string& each) {
    return each == "*" || Same(each, origin);
  });
  const bool is_web = origin.starts_with("http://") || origin.starts_with("https://");
  if (is_listed || (is_web && (IsLocal(NameOf(origin)) || IsOwn(options, origin, host)))) {
    return OriginKind::kAllowed;
  }
  return OriginKind::kForeign;
}

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
    const std::string_view requested_headers = request.Header("Access-Control-Request-Headers");
    answer.headers.emplace_back("Access-Control-Allow-Methods", allow);
    answer.headers.emplace_back(
        "Access-Control-Allow-Headers",
        requested_headers.empty() ? "Authorization, Content-Type" : std::string(requested_headers));
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

namespace {

void Call(const Handler& handler, std::shared_ptr<const Request> request,
          const Responder& responder) {
  try {
    handler(std::move(request), responder);
  } catch (const Error& e) {
    responder.SendError(e);
  } catch (const std::bad_alloc&) {
    LOG_ERROR("http: a handler ran out of memory");
    responder.SendError(503, "The server is out of memory for this request");
  } catch (const std::exception& e) {
    LOG_ERROR("http: a handler failed: {}", e.what());
    responder.SendError(500, "The server failed to process this request");
  } catch (...) {
    LOG_ERROR("http: a handler threw an object that is not a std::exception");
    responder.SendError(500, "The server failed to process this request");
  }
}

}  // namespace

void Dispatch(const Admission& admission, std::shared_ptr<const Request> request,
              const Responder& responder, WorkerPool& workers) {
  if (admission.handler == nullptr) {
    const std::string body = admission.status >= 400
                                 ? ErrorBody(admission.status, admission.message, admission.code)
                                 : "";
    responder.Send(admission.status, body.empty() ? "" : kJson, body, admission.headers);
    return;
  }
  if (request->body.empty()) return Call(*admission.handler, std::move(request), responder);
  const auto lane = WorkerPool::LaneOf(request->body.size());
  const bool taken = workers.Post(
      lane, [handler = admission.handler, request = std::move(request), responder]() mutable {
        // Skip the work if the client disconnected while its request was queued.
        if (!responder.Closed()) Call(*handler, std::move(request), responder);
      });
  if (!taken) responder.SendError(503, "Too many requests are queued for parsing: try again later");
}

}  // namespace switchyard::http
