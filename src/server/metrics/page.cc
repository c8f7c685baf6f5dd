#include "server/metrics/page.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/check.h"

namespace switchyard::metrics {

std::vector<double> OneTwoFive(int64_t most) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= most; power *= 10) {
    for (const int64_t bound : {power, 2 * power, 5 * power})
      if (bound <= most) bounds.push_back(static_cast<double>(bound));
  }
  return bounds;
}

std::vector<double> Union(std::span<const double> a, std::span<const double> b) {
  std::vector<double> both;
  std::ranges::set_union(a, b, std::back_inserter(both));
  return both;
}

namespace {

std::vector<double> Sorted(std::vector<double> bounds) {
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(Sorted(std::move(bounds))), buckets_(bounds_.size() + 1) {}

void Histogram::Observe(double value, uint64_t count) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[bucket].fetch_add(count, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
}

HistogramCounts Histogram::Read(std::span<const double> bounds) const {
  HistogramCounts counts{.bounds = {bounds.begin(), bounds.end()},
                         .buckets = std::vector<uint64_t>(bounds.size() + 1),
                         .sum = sum_.load(std::memory_order_relaxed)};
  size_t own = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    for (; own < bounds_.size() && bounds_[own] <= bounds[i]; ++own)
      counts.buckets[i] += buckets_[own].load(std::memory_order_relaxed);
    CHECK(own > 0 && bounds_[own - 1] == bounds[i]);
  }
  for (; own < buckets_.size(); ++own)
    counts.buckets.back() += buckets_[own].load(std::memory_order_relaxed);
  return counts;
}

void Page::Gauge(const std::string& name, const std::string& help, const Labels& labels,
                 double value) {
  prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels).Set(value);
}

void Page::Counter(const std::string& name, const std::string& help, const Labels& labels,
                   double value) {
  prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels).Increment(value);
}

void Page::Histogram(const std::string& name, const std::string& help, const Labels& labels,
                     const HistogramCounts& counts) {
  const std::vector<double> buckets(counts.buckets.begin(), counts.buckets.end());
  prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(registry_)
      .Add(labels, counts.bounds)
      .ObserveMultiple(buckets, counts.sum);
}

std::string Page::Text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace switchyard::metrics
