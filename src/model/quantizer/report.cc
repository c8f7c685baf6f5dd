#include "model/quantizer/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/json.h"

namespace switchyard {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Splits "model.layers.3.mlp.experts.7.up_proj" into layer 3 and kind "mlp.experts.up_proj".
std::pair<int64_t, std::string> PlaceOf(std::string_view module) {
  int64_t layer = -1;
  std::string kind;
  while (!module.empty()) {
    const std::string_view part = module.substr(0, module.find('.'));
    module.remove_prefix(std::min(module.size(), part.size() + 1));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = error == std::errc() && end == part.data() + part.size();
    if (is_number && layer < 0) {
      layer = number;
      kind.clear();  // drops the prefix of the layers' names
    } else if (!is_number) {
      kind += kind.empty() ? "" : ".";
      kind += part;
    }
  }
  return {layer, kind};
}

// The sums of one kind over all layers, and its worst layer.
struct KindSums {
  PackingError all, worst;
  int64_t worst_layer = -1;
};

template <typename Errors>
std::map<std::string, KindSums> ByKind(const Errors& errors) {
  std::map<std::string, KindSums> kinds;
  for (const auto& [place, error] : errors) {
    KindSums& kind = kinds[place.second];
    if (kind.all.weights == 0 || error.RelativeRms() > kind.worst.RelativeRms()) {
      kind.worst = error;
      kind.worst_layer = place.first;
    }
    kind.all += error;
  }
  return kinds;
}

template <typename Errors>
PackingError Total(const Errors& errors) {
  PackingError total;
  for (const auto& [place, error] : errors) total += error;
  return total;
}

}  // namespace

double PackingError::RelativeRms() const { return squares > 0 ? std::sqrt(error / squares) : 0; }

PackingError& PackingError::operator+=(const PackingError& other) {
  error += other.error;
  squares += other.squares;
  weights += other.weights;
  return *this;
}

void PackingReport::Add(std::string_view module, const PackingError& error) {
  errors_[PlaceOf(module)] += error;
}

void PackingReport::Add(const PackingReport& other) {
  for (const auto& [place, error] : other.errors_) errors_[place] += error;
}

ordered_json PackingReport::Json() const {
  ordered_json out;
  const PackingError total = Total(errors_);
  out["relative_rms"] = total.RelativeRms();
  out["weights"] = total.weights;
  out["kinds"] = ordered_json::object();
  for (const auto& [kind, sums] : ByKind(errors_)) {
    out["kinds"][kind] = {{"relative_rms", sums.all.RelativeRms()},
                          {"worst_relative_rms", sums.worst.RelativeRms()},
                          {"worst_layer", sums.worst_layer},
                          {"weights", sums.all.weights}};
  }
  out["layers"] = ordered_json::array();
  for (const auto& [place, error] : errors_) {  // sorted by layer
    ordered_json& layers = out["layers"];
    if (layers.empty() || layers.back()["layer"].get<int64_t>() != place.first) {
      layers.push_back({{"layer", place.first}, {"kinds", ordered_json::object()}});
    }
    layers.back()["kinds"][place.second] = error.RelativeRms();
  }
  return out;
}

std::string PackingReport::Table() const {
  const auto kinds = ByKind(errors_);
  size_t width = 4;
  for (const auto& [kind, sums] : kinds) width = std::max(width, kind.size());
  std::string out = fmt::format("{:<{}}  {:>14}  {:>16}  {:>11}\n", "kind", width, "weights",
                                "relative RMS", "worst layer");
  const auto line = [&](const std::string& name, const KindSums& sums) {
    out += fmt::format("{:<{}}  {:>14}  {:>15.2f}%", name, width, sums.all.weights,
                       100 * sums.all.RelativeRms());
    if (sums.worst_layer >= 0) {
      out += fmt::format("  {:>3}: {:>5.2f}%", sums.worst_layer, 100 * sums.worst.RelativeRms());
    }
    out += '\n';
  };
  for (const auto& [kind, sums] : kinds) line(kind, sums);
  line("all", {.all = Total(errors_)});
  return out;
}

json PackingReport::Sums() const {
  json out = json::array();
  for (const auto& [place, e] : errors_) {
    out.push_back({place.first, place.second, e.error, e.squares, e.weights});
  }
  return out;
}

PackingReport PackingReport::FromSums(const json& sums, const std::string& file) {
  PackingReport report;
  try {
    for (const json& entry : sums) {
      report.errors_[{entry.at(0).get<int64_t>(), entry.at(1).get<std::string>()}] +=
          {.error = entry.at(2).get<double>(),
           .squares = entry.at(3).get<double>(),
           .weights = entry.at(4).get<int64_t>()};
    }
  } catch (const json::exception&) {
    throw Invalid("{}: holds malformed sums of errors; remove the file to begin again", file);
  }
  return report;
}

}  // namespace switchyard
