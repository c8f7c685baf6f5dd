#include "server/http/router.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace switchyard::http {

void Router::Add(std::string method, std::string path, Handler handler, Access access) {
  CHECK(path.starts_with('/'));
  Methods* methods = nullptr;
  const size_t brace = path.find('{');
  if (brace == std::string::npos) {
    methods = &exact_[path];
  } else {
    CHECK(path[brace - 1] == '/' && path.find('}') == path.size() - 1);
    const std::string prefix = path.substr(0, brace);
    auto it = std::find_if(patterns_.begin(), patterns_.end(),
                           [&](const Pattern& pattern) { return pattern.prefix == prefix; });
    if (it == patterns_.end()) {
      it = std::find_if(patterns_.begin(), patterns_.end(), [&](const Pattern& pattern) {
        return pattern.prefix.size() < prefix.size();
      });
      it = patterns_.insert(it, {prefix, path.substr(brace + 1, path.size() - brace - 2), {}});
    }
    methods = &it->methods;
  }
  const bool is_new = methods->emplace(std::move(method), Route{std::move(handler), access}).second;
  CHECK(is_new);
}

const Router::Pattern* Router::FindPattern(const std::string& path) const {
  const auto found = std::ranges::find_if(patterns_, [&](const Pattern& pattern) {
    return path.size() > pattern.prefix.size() && path.starts_with(pattern.prefix);
  });
  return found == patterns_.end() ? nullptr : &*found;
}

std::string Router::RouteOf(const std::string& path) const {
  if (exact_.contains(path)) return path;
  const Pattern* pattern = FindPattern(path);
  return pattern ? pattern->path() : "";
}

std::vector<Router::Entry> Router::Entries() const {
  std::vector<Entry> entries;
  const auto add = [&](const std::string& path, const Methods& methods) {
    for (const auto& [method, route] : methods) entries.push_back({method, path, route.access});
  };
  for (const auto& [path, methods] : exact_) add(path, methods);
  for (const Pattern& pattern : patterns_) add(pattern.path(), pattern.methods);
  std::ranges::stable_sort(entries, {}, &Entry::path);
  return entries;
}

Router::Match Router::Find(std::string_view method, const std::string& path) const {
  Match match;
  const Methods* methods = nullptr;
  if (const auto exact = exact_.find(path); exact != exact_.end()) {
    methods = &exact->second;
  } else if (const Pattern* pattern = FindPattern(path)) {
    methods = &pattern->methods;
    match.params[pattern->parameter] = path.substr(pattern->prefix.size());
  }
  if (methods == nullptr) return match;

  auto found = methods->find(method);
  if (found == methods->end() && method == "HEAD") found = methods->find("GET");
  if (found != methods->end()) {
    match.handler = &found->second.handler;
    match.access = found->second.access;
  }
  for (const auto& [name, route] : *methods) {
    match.allow += name + (name == "GET" ? ", HEAD, " : ", ");
  }
  match.allow += "OPTIONS";
  return match;
}

}  // namespace switchyard::http
