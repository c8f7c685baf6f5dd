// Pictures of training logs: curves over steps as SVG documents.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::train {

// Draws curves over steps as an SVG document.

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

// Plots of training logs.

// One metric of a log over its steps. Lines without the metric, or with a metric that is not a
// number, are skipped.
Curve CurveOf(const std::filesystem::path& log, const std::string& key, const std::string& label);

// Draws `output`/loss.svg from `output`/log.jsonl, and balance.svg if the model has experts. Throws
// Error: errors of ReadStepLog, kResource if a file cannot be written.
void WritePictures(const std::filesystem::path& output);

// Throws Error kResource if the file cannot be written.
void WritePicture(const std::filesystem::path& path, const std::string& svg);

}  // namespace switchyard::train
