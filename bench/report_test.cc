#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace switchyard::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Captures the output of a report.
class Printed {
 public:
  explicit Printed(const std::string& filter)
      : file_(open_memstream(&text_, &size_)), report_(filter, file_, /*progress=*/false) {}
  ~Printed() {
    std::fclose(file_);
    std::free(text_);
  }
  Report& report() { return report_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
  Report report_;
};

TEST(RooflineTest, IsTheSlowerOfBytesAndOperations) {
  const Limit memory = Roofline(/*bytes=*/200, /*bandwidth=*/100, /*flops=*/10, /*peak=*/10);
  EXPECT_EQ(memory.seconds, 2.0);
  EXPECT_EQ(memory.bound, Bound::kMemory);
  const Limit compute = Roofline(200, 100, 30, 10);
  EXPECT_EQ(compute.seconds, 3.0);
  EXPECT_EQ(compute.bound, Bound::kCompute);
  EXPECT_EQ(Roofline(200, 100, 30, /*peak=*/0).seconds, 2.0);  // unknown peak
}

TEST(LineTest, HasNameShapeTimeRatesAndPartOfTheRoofline) {
  const Result result = {.name = "linear",
                         .shape = "bfloat16 8 x 16 x 32",
                         .seconds = 2e-6,
                         .flops = 8e3,
                         .bytes = 4e3,
                         .limit = {1e-6, Bound::kMemory},
                         .more = {{"error", 0.0017}, {"route us", 43.2}}};
  const std::string line = Line(result);
  EXPECT_THAT(line, HasSubstr("linear           bfloat16 8 x 16 x 32 "));
  EXPECT_THAT(line, HasSubstr("  2.0 us       4.0 GFLOP/s       2.0 GB/s   50 % of memory roofline"
                              " | error 0.0017, route us 43.2"));
}

TEST(LineTest, UnknownValuesAreDashes) {
  const std::string line = Line({.name = "barrier", .shape = "ranks 2", .seconds = 1e-6});
  EXPECT_THAT(line, HasSubstr("- GFLOP/s         - GB/s    - of roofline"));
}

TEST(ReportTest, FiltersBySubstringOfNameAndShape) {
  Printed printed("linear fp8");
  EXPECT_TRUE(printed.report().Selects("linear", "fp8 1 x 2"));
  EXPECT_FALSE(printed.report().Selects("linear", "bfloat16 1 x 2"));
  printed.report().Add({.name = "linear", .shape = "bfloat16 1 x 2", .seconds = 1});
  printed.report().Add({.name = "linear", .shape = "fp8 1 x 2", .seconds = 1});
  ASSERT_EQ(printed.report().results().size(), 1u);
  EXPECT_EQ(printed.report().results()[0].shape, "fp8 1 x 2");
  EXPECT_THAT(printed.text(), Not(HasSubstr("bfloat16")));
}

TEST(ReportTest, NotesAreCommentsBetweenTheLines) {
  Printed printed("");
  printed.report().Machine("reads from memory", 12.34, "GB/s");
  EXPECT_EQ(printed.text(), "# reads from memory: 12.3 GB/s\n");
}

TEST(ReportTest, JsonHasMachineAndCases) {
  Printed printed("");
  printed.report().Machine("reads from memory", 12.5, "GB/s");
  printed.report().Add({.name = "linear",
                        .shape = "1 x 2",
                        .seconds = 2.0,
                        .flops = 4e9,
                        .bytes = 8e9,
                        .limit = {1.0, Bound::kCompute},
                        .more = {{"error", 0.5}}});
  printed.report().Add({.name = "barrier", .shape = "ranks 2", .seconds = 1.0});
  const std::string file = testing::TempDir() + "/switchyard_report_test.json";
  printed.report().WriteJson("kernels", "cpu", file);
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["bench"], "kernels");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["machine"][0]["value"], 12.5);
  const auto& linear = json["cases"][0];
  EXPECT_EQ(linear["gflop_per_second"], 2.0);
  EXPECT_EQ(linear["gb_per_second"], 4.0);
  EXPECT_EQ(linear["roofline_fraction"], 0.5);
  EXPECT_EQ(linear["bound"], "compute");
  EXPECT_EQ(linear["more"]["error"], 0.5);
  EXPECT_FALSE(json["cases"][1].contains("roofline_fraction"));
}

TEST(ReportTest, JsonThatCannotBeWrittenIsAnError) {
  Printed printed("");
  EXPECT_THROW(printed.report().WriteJson("kernels", "cpu", "/nowhere/at/all.json"), Error);
}

}  // namespace
}  // namespace switchyard::bench
