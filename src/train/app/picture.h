// Curves over steps as an SVG document.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::train {

struct Curve {
  std::string label;  // in the legend
  std::vector<std::pair<double, double>>
      points;  // (x, y), x ascending; what is not finite is left out
};

struct PictureOptions {
  std::string title, x_label, y_label;
  std::optional<double> low, high;  // of the y axis; else what the smooth curves need
};

// Axes with ticks at round numbers, a legend, and of each curve a pale line of its points and over
// it a smooth one: the mean of the points near by, weighted by a bell of 1/60 of the picture's
// width. Curves of many points are drawn by as many means as fit. Texts are escaped. Throws Error
// kInvalid where no curve has a point.
std::string DrawCurves(const std::vector<Curve>& curves, const PictureOptions& options);

// About `count` round numbers (1, 2 or 5 times a power of ten apart) in [low, high], low < high.
std::vector<double> Ticks(double low, double high, int count);

}  // namespace switchyard::train
