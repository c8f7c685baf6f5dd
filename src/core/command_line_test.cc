#include "core/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(CommandLine& app, const std::vector<std::string>& words) {
  try {
    app.Parse(words);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(CommandLineTest, AssignsEachTypeOfTarget) {
  CommandLine app("Test", "test");
  std::string text;
  int32_t number = 0;
  std::optional<double> real;
  std::vector<int64_t> numbers;
  std::filesystem::path path;
  bool on = false, off = true;
  app.Option("FILE", path);
  app.Option("--text", text);
  app.Option("--number", number);
  app.Option("--real", real);
  app.Option("--numbers", numbers);
  app.Switch("--on", on, "Options", "");
  app.Switch("--yes,!--no", off, "Options", "");
  ASSERT_TRUE(app.Parse({"f", "--text", "a b", "--number=3", "--real", "0.5", "--on", "--no",
                         "--numbers", "1", "2"}));
  EXPECT_EQ(path, "f");
  EXPECT_EQ(text, "a b");
  EXPECT_EQ(number, 3);
  EXPECT_EQ(real, 0.5);
  EXPECT_THAT(numbers, ElementsAre(1, 2));
  EXPECT_TRUE(on);
  EXPECT_FALSE(off);
}

TEST(CommandLineTest, AValueMayBeOptional) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--to"}, ""}, {{"--to", "--on"}, ""}, {{"--to", "a"}, "a"}, {{"--to=a"}, "a"}};
  for (const auto& [words, want] : cases) {
    CommandLine app("Test", "test");
    std::string to;
    bool on = false;
    app.Option("--to", to).OptionalValue();
    app.Switch("--on", on, "Options", "");
    ASSERT_TRUE(app.Parse(words));
    EXPECT_TRUE(app.Given("--to"));
    EXPECT_EQ(to, want);
  }
}

TEST(CommandLineTest, LastFlagCountsAndAnOptionIsGivenOnce) {
  CommandLine app("Test", "test");
  int32_t flag = 0, option = 0;
  app.Flag("--flag", flag, "Group", "");
  app.Option("--option", option);
  ASSERT_TRUE(app.Parse({"--flag", "1", "--flag", "2"}));
  EXPECT_EQ(flag, 2);
  EXPECT_TRUE(app.Given("--flag"));
  EXPECT_FALSE(app.Given("--option"));
  EXPECT_THAT(ErrorOf(app, {"--option", "1", "--option", "2"}), HasSubstr("--option"));
}

TEST(CommandLineTest, ValuesOfALaterListReplaceTheEarlierOnes) {
  CommandLine app("Test", "test");
  std::vector<std::string> data;
  app.List("--data", data, "Group", "");
  ASSERT_TRUE(app.Parse({"--data", "a", "b", "--data", "c"}));
  EXPECT_THAT(data, ElementsAre("c"));
}

TEST(CommandLineTest, ErrorsNameTheOptionAndTheHelp) {
  CommandLine app("Test", "test");
  int32_t number = 0;
  std::string name = "a";
  app.Flag("--number", number, "Group", "").Range(1, 4);
  app.Flag("--name", name, "Group", "").OneOf({"a", "b"});
  app.Flag("--must", name, "Group", "").Required();
  for (const char* flag : {"--number", "--name"}) {
    const std::string error = ErrorOf(app, {"--must", "x", flag, "7"});
    EXPECT_THAT(error, HasSubstr(flag));
    EXPECT_THAT(error, HasSubstr("; see test --help"));
  }
  EXPECT_THAT(ErrorOf(app, {}), HasSubstr("--must is required"));
  app.SetRequired("--must", false);
  EXPECT_TRUE(app.Parse({}));
}

TEST(CommandLineTest, RangesRefuseNan) {
  for (const char* flag : {"--range", "--positive", "--least-zero"}) {
    CommandLine app("Test", "test");
    double value = 1;
    app.Option("--range", value).Range(0.0, 2.0);
    app.Option("--positive", value).Positive();
    app.Option("--least-zero", value).NonNegative();
    for (const char* wrong : {"nan", "-nan", "NaN", "inf", "-1"})
      EXPECT_THAT(ErrorOf(app, {std::string(flag) + "=" + wrong}), HasSubstr(flag)) << wrong;
    EXPECT_EQ(ErrorOf(app, {flag, "2"}), "no error");
    EXPECT_EQ(value, 2);
  }
}

TEST(CommandLineTest, HiddenOptionsCallBackOnceWithTheLastValue) {
  CommandLine app("Test", "test");
  std::vector<std::string> found;
  const auto add = [&](const std::string& value) { found.push_back(value); };
  app.Hidden("--switch", 0, add);
  app.Hidden("--value", 1, add);
  app.Hidden("--values", -1, add);
  ASSERT_TRUE(app.Parse({"--switch=false"}));
  EXPECT_THAT(found, ElementsAre());
  ASSERT_TRUE(
      app.Parse({"--switch", "--switch", "--value", "1", "--value", "2", "--values", "3", "4"}));
  EXPECT_THAT(found, ElementsAre("", "2", "4"));
}

TEST(CommandLineTest, LongNamesInTheOrderOfOptions) {
  CommandLine app("Test", "test");
  int32_t tp = 1;
  app.Option("--tp,--tp-size", tp);
  EXPECT_THAT(app.LongNames(), ElementsAre(ElementsAre("help"), ElementsAre("tp", "tp-size")));
  EXPECT_TRUE(app.Has("--tp-size"));
  EXPECT_FALSE(app.Has("--ep"));
}

}  // namespace
}  // namespace switchyard
