#include "server/http/error_body.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

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

namespace {

// First components of the routes with several components.
constexpr std::string_view kRoutes[] = {"v1", "eplb"};
constexpr std::string_view kUsualNames[] = {
    "bin",  "boot", "data", "dev",     "etc", "home", "lib", "mnt", "models", "opt",
    "proc", "root", "run",  "scratch", "srv", "sys",  "tmp", "usr", "var"};

bool IsSpace(char c) { return static_cast<unsigned char>(c) <= ' '; }

bool MayPrecedePath(char c) {
  return IsSpace(c) || std::string_view("\"'`([{>,;:|=").find(c) != std::string_view::npos;
}

bool EndsPath(char c) {
  return IsSpace(c) || std::string_view("\"'`()[]{}<>,;:|").find(c) != std::string_view::npos;
}

// `before`: the character before the path; '\0' at the start of the text.
bool IsAbsolute(char before, std::string_view path, const RootNames& roots) {
  if (before != '\0' && !MayPrecedePath(before)) return false;
  const size_t begin = path.find_first_not_of('/');
  if (begin == std::string_view::npos) return false;
  if (before == ':' && begin == 2) return false;  // a host name follows, as in https://host/a
  const size_t end = path.find('/', begin);
  if (end == std::string_view::npos) return false;
  if (path.find_first_not_of('/', end) == std::string_view::npos) return false;
  return roots.contains(path.substr(begin, end - begin));
}

std::string_view LastComponent(std::string_view path) {
  path = path.substr(0, path.find_last_not_of('/') + 1);
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

RootNames ReadRootNames() {
  RootNames names;
  for (const std::string_view name : kUsualNames) names.emplace(name);
  std::error_code failed;
  // Reads only the names of the entries. A stat of an entry could block on a file system that does
  // not respond.
  std::filesystem::directory_iterator entry("/", failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed))
    names.insert(entry->path().filename().string());
  for (const std::string_view route : kRoutes) names.erase(std::string(route));
  return names;
}

std::string HidePaths(std::string_view message, const RootNames& roots) {
  std::string shown;
  size_t at = 0;
  for (size_t slash = message.find('/'); slash != std::string_view::npos;
       slash = message.find('/', at)) {
    size_t end = slash;
    while (end < message.size() && !EndsPath(message[end])) ++end;
    const std::string_view path = message.substr(slash, end - slash);
    const char before = slash == 0 ? '\0' : message[slash - 1];
    shown += message.substr(at, slash - at);
    shown += IsAbsolute(before, path, roots) ? LastComponent(path) : path;
    at = end;
  }
  shown += message.substr(at);
  return shown;
}

std::string HidePaths(std::string_view message) {
  static const RootNames kRoots = ReadRootNames();
  return HidePaths(message, kRoots);
}

}  // namespace switchyard::http
