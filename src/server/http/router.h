// Maps methods and paths to handlers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"

namespace switchyard::http {

// Filled before the server starts; then read-only and shared by all I/O threads.
class Router {
 public:
  struct Match {
    const Handler* handler = nullptr;  // owned by the router; null: see `allow`
    Access access = Access::kUser;
    std::map<std::string, std::string> params;
    std::string allow;  // methods of the path, e.g. "GET, HEAD, OPTIONS"; empty: unknown path
  };

  // CHECKs that (method, path) is new, and that a parameter occurs only at the end of `path`.
  void Add(std::string method, std::string path, Handler handler, Access access = Access::kUser);

  Match Find(std::string_view method, const std::string& path) const;

  // The registered path of the route that serves `path`, such as "/v1/models/{id}"; empty: none.
  std::string RouteOf(const std::string& path) const;

  struct Entry {
    std::string method, path;  // as registered
    Access access;
  };
  std::vector<Entry> Entries() const;  // ordered by path, then by method

 private:
  struct Route {
    Handler handler;
    Access access;
  };
  using Methods = std::map<std::string, Route, std::less<>>;
  struct Pattern {
    std::string prefix;     // for example "/v1/models/"
    std::string parameter;  // for example "id"
    Methods methods;
    std::string path() const { return prefix + '{' + parameter + '}'; }
  };

  const Pattern* FindPattern(const std::string& path) const;

  std::map<std::string, Methods> exact_;
  std::vector<Pattern> patterns_;  // longest prefix first
};

}  // namespace switchyard::http
