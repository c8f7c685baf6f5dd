// Maps pairs of a dispatch layout and a runner layout to permutes, both for CPUs (permute.h) and
// for GPUs (gpu_backends.h).
#pragma once

#include <map>
#include <string>
#include <utility>

#include "core/format.h"
#include "moe/types.h"

namespace switchyard {

// Filled at startup together with the registries (registry.h), then read-only.
template <typename Permute>
class PermuteTableOf {
 public:
  void Add(DispatchLayout from, RunnerLayout to, Permute permute) {
    permutes_[{from, to}] = std::move(permute);
  }
  // Null if the pair is not registered.
  const Permute* Find(DispatchLayout from, RunnerLayout to) const {
    const auto it = permutes_.find({from, to});
    return it == permutes_.end() ? nullptr : &it->second;
  }
  // Returns the registered pairs as a text for messages: "standard → contiguous, normal →
  // contiguous, …".
  std::string Pairs() const {
    std::string text;
    for (const auto& entry : permutes_) {
      const auto& [from, to] = entry.first;
      text += fmt::format("{}{} → {}", text.empty() ? "" : ", ", Name(from), Name(to));
    }
    return text;
  }

 private:
  std::map<std::pair<DispatchLayout, RunnerLayout>, Permute> permutes_;
};

}  // namespace switchyard
