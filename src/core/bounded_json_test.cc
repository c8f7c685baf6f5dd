#include "core/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(BoundedJson, ParsesAsTheLibraryDoes) {
  for (const char* text :
       {"null", "[]", "{}", R"({"a": [1, -2, 2.5, true, "x", {"b": null}], "c": {}})",
        R"({"twice": 1, "twice": 2})", "18446744073709551616"}) {
    EXPECT_EQ(ParseBoundedJson(text, "f"), nlohmann::json::parse(text)) << text;
  }
}

TEST(BoundedJson, NamesTheDocumentThatIsNoJson) {
  for (const char* text : {"", "{", "[1,]", "nul", "\"\xff\"", "{} {}", "1e999"}) {
    EXPECT_THAT(ErrorOf([&] { ParseBoundedJson(text, "dir/f.json"); }),
                HasSubstr("dir/f.json: not JSON"))
        << text;
  }
}

TEST(BoundedJson, RefusesNestingBeyondItsBound) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(ParseBoundedJson(nested(5), "f", {.depth = 5}));
  EXPECT_THAT(ErrorOf([&] { ParseBoundedJson(nested(6), "f", {.depth = 5}); }),
              HasSubstr("f: nests deeper than 5 levels"));
  EXPECT_THAT(ErrorOf([&] { ParseBoundedJson(R"({"a":{"b":{}}})", "f", {.depth = 2}); }),
              HasSubstr("deeper than 2"));
  // Only open brackets: parsing stops at the depth limit, long before the end of the text.
  EXPECT_THAT(ErrorOf([&] { ParseBoundedJson(std::string(10'000'000, '['), "f"); }),
              HasSubstr("deeper than 64"));
}

TEST(BoundedJson, RefusesMoreValuesThanItsBound) {
  const std::string text = R"({"a": [1, "b", null, true, 2.5]})";  // 8 values: also {, [ and "a"
  EXPECT_NO_THROW(ParseBoundedJson(text, "f", {.values = 8}));
  EXPECT_THAT(ErrorOf([&] { ParseBoundedJson(text, "f", {.values = 7}); }),
              HasSubstr("f: has more than 7 JSON values"));
}

}  // namespace
}  // namespace switchyard
