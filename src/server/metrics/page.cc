#include "server/metrics/page.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <vector>

namespace switchyard::metrics {

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
