#include "server/api/json_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/request_fields.h"
#include "text/jinja/exact_json.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

template <typename F>
std::string ErrorOf(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string ParseError(const std::string& body) {
  return ErrorOf([&] { ParseBody(body); });
}

std::string Repeat(const std::string& s, int n) {
  std::string out;
  while (n-- > 0) out += s;
  return out;
}

TEST(JsonBodyTest, OnlyBoundedObjectsAreTaken) {
  EXPECT_THAT(ParseError("{"), HasSubstr("not JSON"));
  EXPECT_THAT(ParseError("\"\xff\""), HasSubstr("not JSON"));
  EXPECT_THAT(ParseError("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ParseError("{\"a\":" + Repeat("[", 100000)), HasSubstr("nests deeper"));
  EXPECT_EQ(ParseError("{\"a\":" + Repeat("[", 100) + Repeat("]", 100) + "}"), "no error");
  std::string many = "{\"k\":{";
  for (int i = 0; i < 5000; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_THAT(ParseError(many + "}}"), HasSubstr("keys"));
}

// The limit of keys applies to each object, not to all objects together.
TEST(JsonBodyTest, ManySmallObjectsAreFine) {
  EXPECT_EQ(ParseError("{\"a\":[" + Repeat("{\"x\":1,\"y\":{\"z\":2}},", 5000) + "{}]}"),
            "no error");
}

TEST(JsonBodyTest, FieldsNameWhatIsWrong) {
  const Json json =
      ParseBody(R"({"i": 1.5, "big": 18446744073709551615, "s": 1, "l": ["a", 1], "null": null,
                                  "bias": {"x": 1}, "ids": [1, -2]})");
  const Fields f(json, "p.");
  EXPECT_THAT(ErrorOf([&] { f.Int("i", 0, 0, 9); }),
              HasSubstr("p.i is 1.5, want an integer from 0 to 9"));
  EXPECT_THAT(ErrorOf([&] { f.Int("big", 0, 0, 9); }), HasSubstr("p.big"));
  EXPECT_THAT(ErrorOf([&] { f.String("s", ""); }), HasSubstr("p.s"));
  EXPECT_THAT(ErrorOf([&] { f.Strings("l"); }), HasSubstr("p.l"));
  EXPECT_THAT(ErrorOf([&] { f.LogitBias("bias"); }), HasSubstr("x is not a token id"));
  EXPECT_THAT(ErrorOf([&] { f.Ids("ids"); }), HasSubstr("-2"));
  EXPECT_EQ(f.Int("null", 7, 0, 9), 7);
  EXPECT_EQ(f.Int("absent", 8, 0, 9), 8);
  EXPECT_EQ(f.Seed("big"), UINT64_MAX);
}

// SGLang and vLLM parse bodies with pydantic's lax mode.
TEST(JsonBodyTest, SpellingsOfBooleansAndNumbers) {
  const Json json =
      ParseBody(R"({"a": "true", "b": "False", "c": 1, "d": "off", "e": 2, "f": "maybe",
                                  "i": 16.0, "j": "16", "k": "0.5", "l": "1e999", "m": 1e300,
                                  "n": "", "o": true})");
  const Fields f(json);
  EXPECT_TRUE(f.Bool("a", false));
  EXPECT_FALSE(f.Bool("b", true));
  EXPECT_TRUE(f.Bool("c", false));
  EXPECT_FALSE(f.Bool("d", true));
  for (const char* key : {"e", "f", "n"}) EXPECT_THROW(f.Bool(key, false), RequestError) << key;
  EXPECT_EQ(f.Int("i", 0, 0, 99), 16);
  EXPECT_EQ(f.Int("j", 0, 0, 99), 16);
  EXPECT_EQ(f.Number("k", 0), 0.5);
  for (const char* key : {"k", "l", "m", "n", "o"})
    EXPECT_THROW(f.Int(key, 0, INT64_MIN, INT64_MAX), RequestError) << key;
  for (const char* key : {"l", "n", "o"}) EXPECT_THROW(f.Number(key, 0), RequestError) << key;
  try {
    f.Bool("e", false);
  } catch (const RequestError& e) {
    EXPECT_EQ(e.param(), "e");
  }
}

TEST(DataParallelRank, HasTwoNames) {
  const auto parse = [](const char* text) {
    const Json body = Json::parse(text);
    return ParseDataParallelRank(Fields(body));
  };
  EXPECT_EQ(parse("{}"), std::nullopt);
  EXPECT_EQ(parse(R"({"data_parallel_rank": 1})"), 1);
  EXPECT_EQ(parse(R"({"routed_dp_rank": 2, "data_parallel_rank": 2})"), 2);
  EXPECT_THROW(parse(R"({"routed_dp_rank": 2, "data_parallel_rank": 1})"), Error);
  EXPECT_THROW(parse(R"({"data_parallel_rank": "one"})"), Error);
}

TEST(JsonBodyTest, BigIntegersStayWholeWhereATemplateSeesThem) {
  const Json body = ParseBody(R"({"seed": 18446744073709551616, "messages": [18446744073709551616],
      "tools": {"n": -18446744073709551616}, "top_p": 1e2})");
  EXPECT_EQ(jinja::BigIntegerOf(body["messages"][0]), "18446744073709551616");
  EXPECT_EQ(jinja::BigIntegerOf(body["tools"]["n"]), "-18446744073709551616");
  EXPECT_TRUE(body["seed"].is_number_float());
  EXPECT_THAT(ErrorOf([&] { Fields(body).Seed("seed"); }), HasSubstr("seed"));
}

}  // namespace
}  // namespace switchyard
