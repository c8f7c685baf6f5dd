#include "train/app/picture.h"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "core/testing.h"

namespace switchyard::train {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Curve Line(int points, double slope) {
  Curve curve{.label = "a & <b>", .points = {}};
  for (int i = 0; i < points; ++i) curve.points.emplace_back(i, slope * i);
  return curve;
}

// The points of the n-th polyline.
std::vector<std::pair<double, double>> Polyline(const std::string& svg, int n) {
  size_t at = 0;
  for (int i = 0; i <= n; ++i) at = svg.find("points=\"", at) + 8;
  std::istringstream in(svg.substr(at, svg.find('"', at) - at));
  std::vector<std::pair<double, double>> out;
  char comma = 0;
  for (double x = 0, y = 0; in >> x >> comma >> y;) out.emplace_back(x, y);
  return out;
}

TEST(PictureTest, TicksAreRound) {
  EXPECT_THAT(Ticks(0, 100, 5), Pointwise(DoubleNear(1e-9), {0, 20, 40, 60, 80, 100}));
  EXPECT_THAT(Ticks(0.13, 0.49, 4), Pointwise(DoubleNear(1e-9), {0.2, 0.3, 0.4}));
  EXPECT_THAT(Ticks(-3, 3, 3), Pointwise(DoubleNear(1e-9), {-2, 0, 2}));
}

TEST(PictureTest, PointsStandWhereTheAxesSay) {
  const std::string svg = DrawCurves({Line(11, 1)}, {.title = "T", .low = 0.0, .high = 10.0});
  const auto points = Polyline(svg, 0);
  ASSERT_EQ(points.size(), 11u);
  const double step = points[1].first - points[0].first, rise = points[0].second - points[1].second;
  EXPECT_GT(step, 0);
  EXPECT_GT(rise, 0);  // y grows upward
  EXPECT_NEAR(points[10].first, points[0].first + 10 * step, 0.6);
  EXPECT_NEAR(points[10].second, points[0].second - 10 * rise, 0.6);
}

TEST(PictureTest, TheSmoothLineIsSmoother) {
  Curve noisy{.label = "n", .points = {}};
  for (int i = 0; i < 500; ++i) noisy.points.emplace_back(i, i % 2 == 0 ? 1.0 : 3.0);
  const std::string svg = DrawCurves({noisy}, {.low = 0.0, .high = 4.0});
  const auto rough = Polyline(svg, 0), smooth = Polyline(svg, 1);
  ASSERT_EQ(rough.size(), smooth.size());
  EXPECT_GT(std::abs(rough[250].second - rough[251].second), 100);
  EXPECT_LT(std::abs(smooth[250].second - smooth[251].second), 2);
}

TEST(PictureTest, ManyPointsAreThinnedAndTextIsEscaped) {
  const std::string svg = DrawCurves({Line(100'000, 0.5)}, {.title = "<script>"});
  EXPECT_EQ(Polyline(svg, 0).size(), 600u);
  EXPECT_THAT(svg, HasSubstr("a &amp; &lt;b&gt;"));
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find(">-0<"), std::string::npos);
}

TEST(PictureTest, WhatIsNotFiniteIsLeftOut) {
  Curve curve = Line(3, 1);
  curve.points[1].second = NAN;
  EXPECT_EQ(Polyline(DrawCurves({curve}, {}), 0).size(), 2u);
  EXPECT_EQ(Polyline(DrawCurves({Line(1, 0)}, {}), 0).size(), 1u);
  EXPECT_THAT(ErrorOf([] { DrawCurves({Line(0, 1)}, {}); }), HasSubstr("nothing to draw"));
}

}  // namespace
}  // namespace switchyard::train
