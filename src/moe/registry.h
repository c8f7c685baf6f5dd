// Maps names to factories: the backends that a flag selects.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {

// Filled once at startup by an explicit call (backends.h) instead of static initializers; then
// read-only.
template <typename Factory>
class Registry {
 public:
  explicit Registry(std::string flag) : flag_(std::move(flag)) {}

  void Add(const std::string& name, Factory factory) { factories_[name] = std::move(factory); }

  // Error kInvalid names the flag and its accepted values.
  const Factory& Find(const std::string& name) const {
    const auto it = factories_.find(name);
    if (it == factories_.end())
      throw Invalid("{} {}: no such backend here, want one of: {}", flag_, name, Names());
    return it->second;
  }

  // Null if `name` is not registered.
  const Factory* FindIf(const std::string& name) const {
    const auto it = factories_.find(name);
    return it == factories_.end() ? nullptr : &it->second;
  }
  const std::map<std::string, Factory>& all() const { return factories_; }

  std::string Names() const {
    std::string names;
    for (const auto& [name, factory] : factories_) names += (names.empty() ? "" : ", ") + name;
    return names;
  }

 private:
  std::string flag_;
  std::map<std::string, Factory> factories_;
};

}  // namespace switchyard
