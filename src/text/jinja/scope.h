// Nested scopes of variables.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// The variables of one block; lookups continue in the enclosing ones. Macros keep the scope of
// their definition.
class Scope {
 public:
  // `context` counts the memory of the scope and must outlive it.
  Scope(Context& context, std::shared_ptr<Scope> parent)
      : context_(context), parent_(std::move(parent)) {
    context_.Hold(kBytes);
  }
  ~Scope() { context_.Drop(kBytes + held_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Null if neither this scope nor an enclosing one has the name.
  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope; scope = scope->parent_.get()) {
      for (const auto& [key, value] : scope->variables_) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }

  // Sets the name in this scope only.
  void Set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    // Twice the size of an entry, because the capacity of a vector is up to twice its size.
    const size_t bytes = 2 * sizeof(variables_[0]) + name.size();
    context_.Hold(bytes);
    held_ += bytes;
    variables_.emplace_back(name, std::move(value));
  }

  void Clear() { variables_.clear(); }

 private:
  static constexpr size_t kBytes = 128;  // bytes of the object and its control block

  Context& context_;
  size_t held_ = 0;
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string, Value>> variables_;
};

using ScopePtr = std::shared_ptr<Scope>;

}  // namespace switchyard::jinja
