// The SVG timeline of a simulation.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/format.h"
#include "plan/simulate.h"

namespace switchyard::plan {
namespace {

constexpr double kWidth = 960, kLeft = 90, kRight = 20, kTop = 50, kPanel = 110, kGap = 40;
constexpr size_t kColumns = 425;

// What an engine does in the time of a column, as seconds.
struct Column {
  double prefill = 0, decode = 0, pause = 0;
  double rows = 0;  // decode rows, times the seconds of their steps
};

// The first engine, divided into columns of equal time. Times of pipeline stages are means over the
// stages.
class Timeline {
 public:
  explicit Timeline(const Simulation& s) : columns_(kColumns) {
    if (!s.first_engine.empty()) end_ = s.first_engine.back().start + s.first_engine.back().seconds;
    if (s.first_engine.size() < Simulation::kKeptSteps)
      for (const Simulation::Pause& p : s.pauses) end_ = std::max(end_, p.start + p.seconds);
    const double stages = std::max<double>(1, static_cast<double>(s.stage_busy.size()));
    for (const Simulation::Step& step : s.first_engine)
      Divide(step.start, step.seconds, [&](Column* column, double of_stage) {
        const double seconds = of_stage / stages;
        (step.prompt_rows > 0 ? column->prefill : column->decode) += seconds;
        column->rows += seconds * static_cast<double>(step.decode_rows);
      });
    for (const Simulation::Pause& p : s.pauses)
      Divide(p.start, p.seconds, [](Column* column, double seconds) { column->pause += seconds; });
  }

  double end() const { return end_; }
  double of_column() const { return end_ / kColumns; }
  const std::vector<Column>& columns() const { return columns_; }
  double X(double seconds) const { return kLeft + (kWidth - kLeft - kRight) * seconds / end_; }

 private:
  template <typename F>
  void Divide(double start, double seconds, const F& add) {
    const double stop = std::min(start + seconds, end_);
    auto at = static_cast<size_t>(start / of_column());
    for (double from = start; from < stop && at < kColumns; ++at) {
      const double to = std::min(stop, static_cast<double>(at + 1) * of_column());
      if (to > from) add(&columns_[at], to - from);
      from = std::max(from, to);
    }
  }

  double end_ = 1e-9;
  std::vector<Column> columns_;
};

std::string Frame(double top, const std::string& title) {
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#aaa\"/><text "
      "x=\"{}\" y=\"{}\">{}</text>\n",
      kLeft, top, kWidth - kLeft - kRight, kPanel, kLeft, top - 6, title);
}

// Fractions of time, stacked from below: steps with prompts, without, and pauses.
std::string Fractions(const Timeline& timeline, double top) {
  constexpr std::array<const char*, 3> kColors = {"#1b6ca8", "#9fc5e8", "#c0392b"};
  std::string svg =
      Frame(top, "fractions of time: steps with prompts (dark), without (light), pauses (red)");
  const double width = (kWidth - kLeft - kRight) / kColumns;
  for (size_t i = 0; i < kColumns; ++i) {
    const Column& column = timeline.columns()[i];
    double y = top + kPanel;
    size_t color = 0;
    for (const double seconds : {column.prefill, column.decode, column.pause}) {
      const double height = kPanel * std::min(1.0, seconds / timeline.of_column());
      y -= height;
      if (height > 0.05)
        svg += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
            kLeft + width * static_cast<double>(i), y, width, height, kColors[color]);
      ++color;
    }
  }
  return svg;
}

std::string DecodeRows(const Timeline& timeline, bool stages, double top) {
  double most = 1;
  std::vector<double> rows;
  for (const Column& column : timeline.columns()) {
    const double busy = column.prefill + column.decode;
    rows.push_back(busy > 0 ? column.rows / busy : 0);
    most = std::max(most, rows.back());
  }
  std::string line;
  for (size_t i = 0; i < kColumns; ++i)
    line += fmt::format("{:.1f},{:.1f} ",
                        timeline.X((static_cast<double>(i) + 0.5) * timeline.of_column()),
                        top + kPanel * (1 - rows[i] / most));
  return Frame(top, stages ? "requests that decode, in each pass" : "requests that decode") +
         fmt::format(
             "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0f}</text><polyline "
             "points=\"{}\" fill=\"none\" stroke=\"#1e8449\"/>\n",
             kLeft - 8, top + 10, most, line);
}

std::string Balancedness(const Timeline& timeline, const Simulation& s, double top) {
  std::string line;
  float last = 0;
  for (const auto& [seconds, value] : s.experts.changes) {
    if (seconds > timeline.end()) break;
    const double x = timeline.X(seconds);
    if (!line.empty()) line += fmt::format("{:.1f},{:.1f} ", x, top + kPanel * (1 - last));
    line += fmt::format("{:.1f},{:.1f} ", x, top + kPanel * (1 - value));
    last = value;
  }
  line += fmt::format("{:.1f},{:.1f}", kWidth - kRight, top + kPanel * (1 - last));
  std::string svg = Frame(top, "balancedness of experts (0 to 1), and rebalances");
  for (const Rebalance& r : s.experts.rebalances)
    if (r.start <= timeline.end())
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#b9770e\"/>\n",
          timeline.X(r.start), top, top + kPanel);
  return svg + fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#8e44ad\"/>\n", line);
}

}  // namespace

std::string SimulationPicture(const Evaluation& layout, const Simulation& s) {
  const Timeline timeline(s);
  const bool experts = !s.experts.changes.empty();
  const double height = kTop + (experts ? 3 : 2) * (kPanel + kGap);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"{2}\" y=\"20\">{3}: the first engine, 0 to {4:.6g} s</text>\n",
      kWidth, height, kLeft, layout.layout.Name(), timeline.end());
  svg +=
      Fractions(timeline, kTop) + DecodeRows(timeline, !s.stage_busy.empty(), kTop + kPanel + kGap);
  if (experts) svg += Balancedness(timeline, s, kTop + 2 * (kPanel + kGap));
  return svg + "</svg>\n";
}

}  // namespace switchyard::plan
