// A page of metrics in the text format of Prometheus.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/registry.h>

#include <string>

#include "server/metrics/histogram.h"

namespace switchyard::metrics {

using Labels = prometheus::Labels;

// The values of one scrape. Each page has its own registry. A name may be added several times, with
// different labels.
class Page {
 public:
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value);
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value);
  void Histogram(const std::string& name, const std::string& help, const Labels& labels,
                 const HistogramCounts& counts);
  std::string Text() const;

 private:
  // With Merge, registering a family again returns the existing one.
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

}  // namespace switchyard::metrics
