// The error of packed weights, by layer and kind of linear.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace switchyard {

// Sums over the weights w of some linears, with w' their packed values.
struct PackingError {
  double error = 0;    // sum of (w - w')²
  double squares = 0;  // sum of w²
  int64_t weights = 0;

  // sqrt(error / squares); 0 if all weights are zero.
  double RelativeRms() const;
  PackingError& operator+=(const PackingError& other);
};

// The errors of a checkpoint. A kind is a module's name without the numbers of layer and expert:
// "mlp.experts.gate_proj". One thread at a time.
class PackingReport {
 public:
  void Add(std::string_view module, const PackingError& error);
  void Add(const PackingReport& other);
  bool empty() const { return errors_.empty(); }

  // {"relative_rms": …, "kinds": {KIND: {"relative_rms": …, "worst_relative_rms": …,
  // "worst_layer": …, "weights": …}}, "layers": [{"layer": 0, "kinds": {KIND: RMS}}]}
  nlohmann::ordered_json Json() const;
  // One line for each kind: relative RMS error over all layers, and of the worst layer.
  std::string Table() const;

  // All sums, to continue later. FromSums throws Error kInvalid if the value is malformed.
  nlohmann::json Sums() const;
  static PackingReport FromSums(const nlohmann::json& sums, const std::string& file);

 private:
  using Place = std::pair<int64_t, std::string>;  // layer (-1: none), kind

  std::map<Place, PackingError> errors_;
};

}  // namespace switchyard
