#include "eplb/layer_plan.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

TEST(ForecastTest, AveragesALoadThatStays) {
  const LoadHistory trace = RecordedTrace("steady").Steps(0, 50);
  const LoadForecast forecast = Forecast(trace);
  EXPECT_EQ(forecast.half_life[0], 40);
  double error = 0, total = 0;
  for (int e = 0; e < 256; ++e) {
    double mean = 0;
    for (int step = 0; step < 50; ++step) mean += trace.At(step, 0)[e] / 50.0;
    error += std::abs(forecast.Layer(0)[e] - mean);
    total += mean;
  }
  EXPECT_LT(error, 0.02 * total);
}

TEST(ForecastTest, FollowsALoadThatWanders) {
  EXPECT_EQ(Forecast(RecordedTrace("drift").Steps(0, 50)).half_life[0], 1);
}

TEST(ForecastTest, DropsTheOldShapeSoonAfterASuddenChange) {
  const LoadHistory trace = RecordedTrace("shift");  // changes at step 100
  const LoadForecast forecast = Forecast(trace.Steps(55, 105));
  double error = 0, total = 0;
  for (int e = 0; e < 256; ++e) {
    double mean = 0;
    for (int step = 110; step < 190; ++step) mean += trace.At(step, 0)[e] / 80.0;
    error += std::abs(forecast.Layer(0)[e] - mean);
    total += mean;
  }
  // With the plain sum of the window, the error exceeds half of total.
  EXPECT_LT(error, 0.2 * total);
}

TEST(ForecastTest, OfOneStepIsThatStepAndOfNoneNothing) {
  EXPECT_EQ(Forecast({1, 1, 3, {4, 0, 2}}).load, (std::vector<float>{4, 0, 2}));
  EXPECT_EQ(Forecast({0, 1, 3, {}}).load, (std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace switchyard
