// Names to factories: how a flag's value becomes a backend.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {

// Filled once at start by an explicit call (backends.h), read afterwards; no static initialisers.
template <typename Factory>
class Registry {
 public:
  explicit Registry(std::string flag) : flag_(std::move(flag)) {}

  void Add(const std::string& name, Factory factory) { factories_[name] = std::move(factory); }

  // Error kInvalid names the flag and the values it takes.
  const Factory& Find(const std::string& name) const {
    const auto it = factories_.find(name);
    if (it == factories_.end())
      throw Invalid("{} {}: no such backend here, want one of: {}", flag_, name, Names());
    return it->second;
  }

  // Null where there is none.
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
