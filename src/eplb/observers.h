// Composite of several observers of the same layers.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "moe/router/routing_observer.h"

namespace switchyard {

// Forwards each call to all observers, which must outlive it.
class Observers : public RoutingObserver {
 public:
  explicit Observers(std::vector<RoutingObserver*> all) : all_(std::move(all)) {}

  void OnPlacement(int layer, const ExpertPlacement& placement) override {
    for (RoutingObserver* one : all_) one->OnPlacement(layer, placement);
  }
  void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) override {
    for (RoutingObserver* one : all_) one->OnRoute(pass, layer, tokens);
  }
  bool needs_tokens() const override {
    return std::ranges::any_of(all_, [](const auto* one) { return one->needs_tokens(); });
  }
  void OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) override {
    for (RoutingObserver* one : all_) one->OnCounts(pass, layer, counts);
  }
  bool needs_pass(uint64_t pass) const override {
    return std::ranges::any_of(all_, [&](const auto* one) { return one->needs_pass(pass); });
  }
  bool needs_dispatch() const override {
    for (const RoutingObserver* one : all_)
      if (one->needs_dispatch()) return true;
    return false;
  }
  void OnDispatch(uint64_t pass, int layer, const GroupedRows& rows) override {
    for (RoutingObserver* one : all_)
      if (one->needs_dispatch()) one->OnDispatch(pass, layer, rows);
  }

 private:
  const std::vector<RoutingObserver*> all_;
};

}  // namespace switchyard
