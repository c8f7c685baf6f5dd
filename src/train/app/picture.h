// Draws curves over steps as an SVG document.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::train {

struct Curve {
  std::string label;  // text in the legend
  std::vector<std::pair<double, double>>
      points;  // (x, y), x ascending; non-finite values are skipped
};

struct PictureOptions {
  std::string title, x_label, y_label;
  std::optional<double> low, high;  // range of the y axis; default: range of the smoothed curves
};

// Draws axes with ticks at round numbers and a legend. Each curve has a pale line of its points and
// a smoothed line on top. The smoothed line is a Gaussian-weighted mean whose width is 1/60 of the
// picture's width. A curve with too many points is reduced to means of consecutive points. Text is
// escaped. Throws Error kInvalid if no curve has a point.
std::string DrawCurves(const std::vector<Curve>& curves, const PictureOptions& options);

// About `count` round numbers in [low, high], spaced by 1, 2 or 5 times a power of ten; low < high.
std::vector<double> Ticks(double low, double high, int count);

}  // namespace switchyard::train
