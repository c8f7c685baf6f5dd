#include "server/http/error_body.h"

#include <nlohmann/json.hpp>

namespace switchyard::http {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

int StatusOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
      return 400;
    case ErrorKind::kUnauthorized:
      return 401;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kTooLarge:
      return 413;
    case ErrorKind::kBusy:
      return 429;
    case ErrorKind::kUnavailable:
      return 503;
    case ErrorKind::kTimeout:
    case ErrorKind::kPeer:
    case ErrorKind::kResource:
      return 500;
  }
  return 500;
}

std::string ErrorBody(int status, std::string_view message, std::string_view code,
                      std::string_view param) {
  using nlohmann::ordered_json;
  const auto or_null = [](std::string_view text) {
    return text.empty() ? ordered_json(nullptr) : ordered_json(text);
  };
  const ordered_json error = {{"message", message},
                              {"type", TypeOf(status)},
                              {"param", or_null(param)},
                              {"code", or_null(code)}};
  ordered_json body = {{"object", "error"}};
  body.update(error);
  body["code"] = status;
  body["error"] = error;
  return body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace switchyard::http
