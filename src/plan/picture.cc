// The Pareto picture: throughput per device over the time between tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "plan/report.h"

namespace switchyard::plan {
namespace {

constexpr double kWidth = 960, kHeight = 560, kLeft = 80, kRight = 250, kTop = 40, kBottom = 60;
constexpr const char* kColors[] = {"#1b6ca8", "#c0392b", "#1e8449", "#8e44ad",
                                   "#b9770e", "#117a65", "#7b241c", "#2c3e50"};

struct Dot {
  double itl, rate;
  size_t layout;  // index in the ranking
};

// Logarithmic axes over the dots.
class Axes {
 public:
  explicit Axes(const std::vector<Dot>& dots) {
    for (const Dot& dot : dots) {
      x0_ = std::min(x0_, dot.itl);
      x1_ = std::max(x1_, dot.itl);
      y0_ = std::min(y0_, dot.rate);
      y1_ = std::max(y1_, dot.rate);
    }
    x0_ /= 1.1, y0_ /= 1.1, x1_ *= 1.1, y1_ *= 1.1;
  }
  double X(double itl) const {
    return kLeft + (kWidth - kLeft - kRight) * std::log(itl / x0_) / std::log(x1_ / x0_);
  }
  double Y(double rate) const {
    return kHeight - kBottom -
           (kHeight - kTop - kBottom) * std::log(rate / y0_) / std::log(y1_ / y0_);
  }
  // Calls at(tick) for each tick in [from, to]: 1, 2 and 5 times the powers of ten.
  template <typename F>
  static void Ticks(double from, double to, const F& at) {
    for (double power = std::pow(10, std::floor(std::log10(from))); power <= to; power *= 10)
      for (const double step : {1.0, 2.0, 5.0})
        if (step * power >= from && step * power <= to) at(step * power);
  }
  void Draw(std::string* svg, const char* unit) const {
    Ticks(x0_ * 1e3, x1_ * 1e3, [&](double ms) {
      const double x = X(ms * 1e-3);
      *svg += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" "
          "stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
          "text-anchor=\"middle\">{4:g}</text>\n",
          x, kTop, kHeight - kBottom, kHeight - kBottom + 18, ms);
    });
    Ticks(y0_, y1_, [&](double rate) {
      const double y = Y(rate);
      *svg += fmt::format(
          "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" "
          "stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5:g}</text>\n",
          y, kLeft, kWidth - kRight, kLeft - 8, y + 4, rate);
    });
    *svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time between tokens, ms"
        "</text>\n<text x=\"{}\" y=\"24\">output tokens per second and {}</text>\n",
        (kLeft + kWidth - kRight) / 2, kHeight - 16, kLeft, unit);
  }

 private:
  double x0_ = 1e300, x1_ = 0, y0_ = 1e300, y1_ = 0;
};

// The Pareto front: the dots for which no other dot has both a higher rate and a shorter time.
std::vector<Dot> Front(std::vector<Dot> dots) {
  std::ranges::sort(dots, {}, [](const Dot& d) { return std::pair(d.itl, -d.rate); });
  std::vector<Dot> front;
  for (const Dot& dot : dots)
    if (front.empty() || dot.rate > front.back().rate) front.push_back(dot);
  return front;
}

}  // namespace

std::string Picture(const Question& q, const std::vector<Evaluation>& ranked) {
  std::vector<Dot> dots;
  for (size_t i = 0; i < ranked.size(); ++i) {
    const double devices = q.cluster.cuda ? ranked[i].layout.mesh.world() : 1;
    for (const Point& p : ranked[i].points) dots.push_back({p.itl, p.output_rate / devices, i});
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  if (dots.empty()) return svg + "</svg>\n";
  const Axes axes(dots);
  axes.Draw(&svg, q.cluster.cuda ? "GPU" : "host");
  for (const Dot& dot : dots)
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"#bbb\"/>\n",
                       axes.X(dot.itl), axes.Y(dot.rate));
  const std::vector<Dot> front = Front(dots);
  std::string line;
  for (const Dot& dot : front)
    line += fmt::format("{:.1f},{:.1f} ", axes.X(dot.itl), axes.Y(dot.rate));
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#888\"/>\n", line);
  std::vector<size_t> named;
  for (const Dot& dot : front) {
    auto at = std::ranges::find(named, dot.layout);
    if (at == named.end()) at = named.insert(named.end(), dot.layout);
    const size_t index = at - named.begin();
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n",
                       axes.X(dot.itl), axes.Y(dot.rate), kColors[index % std::size(kColors)]);
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const double y = kTop + 18 * static_cast<double>(i) + 8;
    svg += fmt::format(
        "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}"
        "</text>\n",
        kWidth - kRight + 14, y, kColors[i % std::size(kColors)], kWidth - kRight + 24, y + 4,
        ranked[named[i]].layout.Name());
  }
  return svg + "</svg>\n";
}

}  // namespace switchyard::plan
