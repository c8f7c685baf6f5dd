#include "train/app/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/app/step_log.h"

namespace switchyard::train {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr int kLeft = 70, kTop = 50, kWidth = 760, kHeight = 360, kMaxPoints = 600;
// Color-blind safe palette: Okabe and Ito, Color Universal Design (2008).
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (static_cast<unsigned char>(c) >= ' ') {
      out += c;
    }
  }
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void Add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  // Adds a margin if the range is empty or a single value.
  void Widen() {
    if (high > low) return;
    const double room = std::max(std::abs(low) * 0.1, 1e-6);
    low -= room;
    high += room;
  }
};

// Drops points that are not finite, and reduces the rest to at most kMaxPoints means of consecutive
// points.
Points Decimated(const Points& points) {
  Points finite;
  for (const auto& p : points) {
    if (std::isfinite(p.first) && std::isfinite(p.second)) finite.push_back(p);
  }
  const size_t count = std::min<size_t>(finite.size(), kMaxPoints);
  Points out;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * finite.size() / count, end = (i + 1) * finite.size() / count;
    double x = 0, y = 0;
    for (size_t j = begin; j < end; ++j) {
      x += finite[j].first;
      y += finite[j].second;
    }
    const auto n = static_cast<double>(end - begin);
    out.emplace_back(x / n, y / n);
  }
  return out;
}

Points Smooth(const Points& points, double width) {
  Points out;
  for (const auto& [x, y] : points) {
    double sum = 0, weights = 0;
    for (const auto& [other, value] : points) {
      const double distance = width > 0 ? (other - x) / width : 0;
      const double weight = std::exp(-0.5 * distance * distance);
      sum += weight * value;
      weights += weight;
    }
    out.emplace_back(x, sum / weights);
  }
  return out;
}

struct Axes {
  Range x, y;
  double X(double v) const { return kLeft + (v - x.low) / (x.high - x.low) * kWidth; }
  double Y(double v) const {
    const double part = std::clamp((v - y.low) / (y.high - y.low), 0.0, 1.0);
    return kTop + kHeight - part * kHeight;
  }
};

void Text(std::string* svg, double x, double y, const char* anchor, const std::string& text,
          const char* more = "") {
  *svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                      anchor, more, Escaped(text));
}

void Line(std::string* svg, const Points& points, const Axes& axes, const char* color,
          const char* style) {
  *svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" {} points=\"", color, style);
  for (const auto& [x, y] : points) *svg += fmt::format("{:.1f},{:.1f} ", axes.X(x), axes.Y(y));
  *svg += "\"/>\n";
}

void DrawAxes(std::string* svg, const Axes& axes, const PictureOptions& options) {
  constexpr int kBottom = kTop + kHeight;
  for (const double tick : Ticks(axes.x.low, axes.x.high, 8)) {
    *svg +=
        fmt::format("<path stroke=\"#ddd\" d=\"M{:.1f} {}V{}\"/>\n", axes.X(tick), kTop, kBottom);
    Text(svg, axes.X(tick), kBottom + 18, "middle", fmt::format("{:.12g}", tick));
  }
  for (const double tick : Ticks(axes.y.low, axes.y.high, 6)) {
    *svg +=
        fmt::format("<path stroke=\"#ddd\" d=\"M{} {:.1f}h{}\"/>\n", kLeft, axes.Y(tick), kWidth);
    Text(svg, kLeft - 8, axes.Y(tick) + 4, "end", fmt::format("{:.6g}", tick));
  }
  *svg += fmt::format("<path stroke=\"#333\" fill=\"none\" d=\"M{} {}V{}h{}\"/>\n", kLeft, kTop,
                      kBottom, kWidth);
  Text(svg, kLeft, kTop - 22, "start", options.title, " font-size=\"16\"");
  Text(svg, kLeft + kWidth / 2.0, kBottom + 40, "middle", options.x_label);
  Text(svg, 18, kTop + kHeight / 2.0, "middle", options.y_label,
       fmt::format(" transform=\"rotate(-90 18 {})\"", kTop + kHeight / 2).c_str());
}

void DrawLegend(std::string* svg, const std::vector<Curve>& curves) {
  double x = kLeft + kWidth;
  for (size_t i = curves.size(); i-- > 0;) {
    Text(svg, x, kTop - 22, "end", curves[i].label);
    x -= 7.5 * static_cast<double>(curves[i].label.size()) + 26;
    *svg += fmt::format("<path stroke=\"{}\" stroke-width=\"3\" d=\"M{:.1f} {}h18\"/>\n",
                        kColors[i % kColors.size()], x, kTop - 26);
    x -= 14;
  }
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * 0.99) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i * step + 0.0);  // adding 0.0 turns -0 into 0
  }
  return ticks;
}

std::string DrawCurves(const std::vector<Curve>& curves, const PictureOptions& options) {
  Axes axes;
  std::vector<Points> thin, smooth;
  for (const Curve& curve : curves) {
    thin.push_back(Decimated(curve.points));
    for (const auto& [x, y] : thin.back()) axes.x.Add(x);
  }
  if (axes.x.low > axes.x.high) throw Invalid("nothing to draw: no step has the metric");
  for (const Points& points : thin) {
    smooth.push_back(Smooth(points, (axes.x.high - axes.x.low) / 60));
    for (const auto& [x, y] : smooth.back()) axes.y.Add(y);
  }
  if (options.low) axes.y.low = *options.low;
  if (options.high) axes.y.high = *options.high;
  axes.x.Widen();
  axes.y.Widen();

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kLeft + kWidth + 30, kTop + kHeight + 60);
  DrawAxes(&svg, axes, options);
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    Line(&svg, thin[i], axes, color, "stroke-width=\"1\" stroke-opacity=\"0.25\"");
    Line(&svg, smooth[i], axes, color, "stroke-width=\"2\"");
  }
  DrawLegend(&svg, curves);
  return svg + "</svg>\n";
}

namespace {

namespace fs = std::filesystem;

Curve Pick(const std::vector<nlohmann::json>& lines, const std::string& key,
           const std::string& label) {
  Curve curve{.label = label, .points = {}};
  for (const nlohmann::json& line : lines) {
    const auto at = line.find(key);
    if (at == line.end() || !at->is_number()) continue;
    curve.points.emplace_back(line["step"].get<double>(), at->get<double>());
  }
  return curve;
}

}  // namespace

Curve CurveOf(const fs::path& log, const std::string& key, const std::string& label) {
  Curve curve = Pick(ReadStepLog(log), key, label);
  if (curve.points.empty())
    throw Invalid("{}: no line has a number in the key {}", log.string(), key);
  return curve;
}

void WritePicture(const fs::path& path, const std::string& svg) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << svg;
  out.close();
  if (!out) throw Resource("{}: cannot be written", path.string());
}

void WritePictures(const fs::path& output) {
  const std::vector<nlohmann::json> lines = ReadStepLog(output / "log.jsonl");
  std::vector<Curve> losses = {Pick(lines, "main", "next token")};
  for (const auto& [key, label] :
       {std::pair("mtp", "MTP, weighted"), std::pair("balance", "balance")}) {
    Curve curve = Pick(lines, key, label);
    const bool any = std::ranges::any_of(curve.points, [](const auto& p) { return p.second != 0; });
    if (any) losses.push_back(std::move(curve));
  }
  WritePicture(output / "loss.svg",
               DrawCurves(losses, {.title = "Loss", .x_label = "step", .y_label = "loss"}));
  const Curve mean = Pick(lines, "balancedness", "mean of layers");
  if (mean.points.empty()) return;
  const Curve worst = Pick(lines, "balancedness_worst", "worst layer");
  WritePicture(output / "balance.svg", DrawCurves({mean, worst}, {.title = "Balance of experts",
                                                                  .x_label = "step",
                                                                  .y_label = "balancedness",
                                                                  .low = 0.0,
                                                                  .high = 1.0}));
}

}  // namespace switchyard::train
