#include "apps/eplb_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace switchyard {
namespace {

constexpr int kMaxColumns = 240;
constexpr int kLeft = 70, kWidth = 960, kMapHeight = 240, kCurveHeight = 180, kGap = 46;
constexpr int kShades = 17;  // colours of a heat map
// The last shade is for rank loads of at least kMaxLoad times the mean.
constexpr double kMaxLoad = 2;

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ')
      out += c;
  }
  return out;
}

void Text(std::string* svg, double x, double y, const char* anchor, const std::string& text) {
  *svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                      anchor, Escaped(text));
}

// Blue where a rank is idle, white at the mean, red at kMaxLoad.
std::string Shade(int shade) {
  const double at = static_cast<double>(shade) / (kShades - 1) * 2 - 1;  // [−1, 1]
  const auto faded = [&](double full) {
    return static_cast<int>(std::lround(255 - (255 - full) * std::abs(at)));
  };
  return at < 0 ? fmt::format("#{:02x}{:02x}{:02x}", faded(33), faded(102), faded(172))
                : fmt::format("#{:02x}{:02x}{:02x}", faded(178), faded(24), faded(43));
}

int ShadeOf(double load) {
  return static_cast<int>(std::lround(std::clamp(load / kMaxLoad, 0.0, 1.0) * (kShades - 1)));
}

// Columns of steps [begin, end).
struct Columns {
  int count, steps;
  explicit Columns(int steps) : count(std::min(steps, kMaxColumns)), steps(steps) {}
  int Begin(int column) const { return static_cast<int>(int64_t{column} * steps / count); }
};

// Draws one SVG path for each shade. Adjacent cells of one rank with the same shade become one
// rectangle of the path.
void HeatMap(std::string* svg, const std::vector<float>& loads, const Columns& columns, int ranks,
             int top, const std::string& title) {
  std::vector<std::string> paths(kShades);
  for (int rank = 0; rank < ranks; ++rank) {
    int begin = 0, shade = -1;
    for (int column = 0; column <= columns.count; ++column) {
      int next = -1;
      if (column < columns.count) {
        double sum = 0;
        const int first = columns.Begin(column), last = columns.Begin(column + 1);
        for (int step = first; step < last; ++step)
          sum += loads[static_cast<size_t>(step) * ranks + rank];
        next = ShadeOf(sum / (last - first));
      }
      if (next == shade) continue;
      if (shade >= 0)
        paths[shade] +=
            fmt::format("M{} {}h{}v1h-{}z", begin, rank, column - begin, column - begin);
      begin = column;
      shade = next;
    }
  }
  Text(svg, kLeft, top - 8, "start", title);
  Text(svg, kLeft - 6, top + 10, "end", "rank 0");
  Text(svg, kLeft - 6, top + kMapHeight, "end", std::to_string(ranks - 1));
  *svg += fmt::format(
      "<g transform=\"translate({} {}) scale({:.5f} {:.5f})\" shape-rendering=\"crispEdges\">\n",
      kLeft, top, static_cast<double>(kWidth) / columns.count,
      static_cast<double>(kMapHeight) / ranks);
  for (int shade = 0; shade < kShades; ++shade)
    if (!paths[shade].empty())
      *svg += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", Shade(shade), paths[shade]);
  *svg += "</g>\n";
  *svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#bbb\"/>\n", kLeft,
      top, kWidth, kMapHeight);
}

void Legend(std::string* svg, int top) {
  const int right = kLeft + kWidth;
  for (int shade = 0; shade < kShades; ++shade)
    *svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"8\" height=\"10\" fill=\"{}\"/>\n",
                        right - 8 * (kShades - shade) - 60, top, Shade(shade));
  Text(svg, right - 8 * kShades - 66, top + 9, "end", "load of a rank / mean: 0");
  Text(svg, right - 54, top + 9, "start", "2 or more");
}

void Curve(std::string* svg, const std::vector<double>& values, const Columns& columns, int top,
           const char* color) {
  std::string points;
  for (int column = 0; column < columns.count; ++column) {
    double sum = 0;
    const int first = columns.Begin(column), last = columns.Begin(column + 1);
    for (int step = first; step < last; ++step) sum += values[step];
    points += fmt::format("{:.1f},{:.1f} ", kLeft + (column + 0.5) * kWidth / columns.count,
                          top + kCurveHeight * (1 - sum / (last - first)));
  }
  *svg +=
      fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n",
                  color, points);
}

void Curves(std::string* svg, const SimulateResult& result, const Columns& columns, int top) {
  Text(svg, kLeft, top - 8, "start",
       fmt::format("mean / max rank load: {:.3f} before (grey), {:.3f} after (blue); marks: plans "
                   "that moved experts",
                   result.mean_before(), result.mean_after()));
  for (int line = 0; line <= 4; ++line) {
    const double y = top + kCurveHeight * line / 4.0;
    *svg += fmt::format("<path stroke=\"#ddd\" d=\"M{} {:.1f}h{}\"/>\n", kLeft, y, kWidth);
    Text(svg, kLeft - 6, y + 4, "end", fmt::format("{:.2f}", 1 - line / 4.0));
  }
  const double per_step = static_cast<double>(kWidth) / columns.steps;
  for (const SimulateResult::Plan& plan : result.plans)
    if (plan.moves.total() > 0)
      *svg += fmt::format("<path stroke=\"#d80\" d=\"M{:.1f} {}v6\"/>\n",
                          kLeft + (plan.step - result.first_step) * per_step, top + kCurveHeight);
  Curve(svg, result.before, columns, top, "#888");
  Curve(svg, result.after, columns, top, "#2166ac");
  for (int mark = 0; mark <= 4; ++mark)
    Text(svg, kLeft + kWidth * mark / 4.0, top + kCurveHeight + 20, "middle",
         fmt::format("step {}", result.first_step + columns.steps * mark / 4));
}

}  // namespace

std::string DrawSimulation(const SimulateResult& result, int ranks, const std::string& title) {
  const Columns columns(static_cast<int>(result.after.size()));
  const int before = 70, after = before + kMapHeight + kGap, curves = after + kMapHeight + kGap;
  const int width = kLeft + kWidth + 40, height = curves + kCurveHeight + 40;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  Text(&svg, kLeft, 24, "start", title);
  Legend(&svg, 40);
  HeatMap(&svg, result.load_before, columns, ranks, before, "before: the trivial placement");
  HeatMap(&svg, result.load_after, columns, ranks, after, "after: the plans");
  Curves(&svg, result, columns, curves);
  return svg + "</svg>\n";
}

}  // namespace switchyard
