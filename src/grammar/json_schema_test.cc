// JSON Schemas: outputs that a schema accepts and rejects, and schemas that cannot be honoured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/source.h"
#include "grammar/test_vocabulary.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

void Check(const std::vector<Case>& cases, JsonSpace space = JsonSpace::kAny) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.schema);
    const auto grammar =
        CompileGrammar(JsonSchemaGrammar(ParseTestJson(c.schema), space), TestTable());
    for (const char* text : c.valid) EXPECT_TRUE(Matches(grammar, text)) << text;
    for (const char* text : c.invalid) EXPECT_FALSE(Matches(grammar, text)) << text;
  }
}

TEST(JsonSchema, TypesAcceptTheirValues) {
  Check({{R"({"type": "null"})", {"null"}, {"nul", "0", ""}},
         {R"({"type": "boolean"})", {"true", "false"}, {"True", "1", "null"}},
         {R"({"type": "integer"})", {"0", "-7", "1234567890123"}, {"01", "1.5", "-", "1e3", "+1"}},
         {R"({"type": "number"})",
          {"0", "-0.5", "1e9", "2.50E-3", "12"},
          {".5", "1.", "01", "NaN", "--1"}},
         {R"({"type": "string"})",
          {R"("")", R"("a b")", R"("\n\"\\é")", "\"é日\""},
          {"a", "\"a", "\"\t\"", "\"\n\"", R"("\x")", "\"\x01\""}},
         {R"({"type": "array"})", {"[]", "[1, \"a\", [null]]"}, {"[1,]", "[", "{}"}},
         {R"({"type": "object"})", {"{}", R"({"a": {"b": []}})"}, {"[]", R"({"a"})", R"({a: 1})"}},
         {R"({"type": ["string", "null"]})", {"null", "\"x\""}, {"1", "true"}},
         {R"({})", {"1", "\"x\"", "[]", "{\"a\":1}", "null"}, {"", "x"}},
         {"true", {"1", "{}"}, {"x"}}});
}

TEST(JsonSchema, TypeIsDerivedFromTheKeywords) {
  Check({{R"({"minimum": 3})", {"3", "4.5"}, {"2", "\"a\""}},
         {R"({"minLength": 2})", {"\"ab\""}, {"\"a\"", "1"}},
         {R"({"maxItems": 1})", {"[]", "[1]"}, {"[1, 2]", "{}"}},
         {R"({"required": ["a"]})", {R"({"a": 1})"}, {"{}", "1"}}});
}

TEST(JsonSchema, AnnotationsHaveNoEffect) {
  Check({{R"({"type": "integer", "title": "a", "strict": true, "x-order": 1})", {"3"}, {"true"}},
         {R"({"strict": true, "type": "object", "properties": {"strict": {"type": "integer"}}})",
          {"{}", R"({"strict": 1})"},
          {R"({"strict": true})"}}});
}

TEST(JsonSchema, StringsHaveTheirLengthAndNoControlCharacters) {
  Check({{R"({"type": "string", "minLength": 1, "maxLength": 3})",
          {"\"a\"", "\"abc\"", "\"日本é\""},
          {"\"\"", "\"abcd\"", "\"\t\"", "\"a\x01\"", "\"\n\"", "\"a\"b\""}},
         {R"({"type": "string", "maxLength": 0})", {"\"\""}, {"\"a\""}},
         {R"({"type": "string", "minLength": 2})",
          {"\"ab\"", "\"abcdefgh\""},
          {"\"a\"", "\"\t\t\""}}});
}

TEST(JsonSchema, PatternsMatchTheWholeStringAndNeedNoEscapes) {
  Check({{R"({"type": "string", "pattern": "^[a-c]+\\d{2}$"})",
          {"\"ab12\"", "\"c00\""},
          {"\"ab1\"", "\"xab12\"", "\"ab123\"", "\"\""}},
         {R"({"type": "string", "pattern": "a.c"})",
          {"\"abc\"", "\"aéc\""},
          {"\"a\"c\"", "\"a\\c\"", "\"a\nc\"", "\"ac\""}},
         {R"({"type": "string", "pattern": "é(x|y)?.*"})",
          {"\"é\"", "\"éx\"", "\"éyz\""},
          {"\"e\"", "\"é\"\"", "\"é\\\""}},
         {R"({"type": "string", "pattern": "\\S+"})",
          {"\"aé日\""},
          {"\"a b\"", "\"a\u00a0b\"", "\"\u3000\"", "\"\u2028\"", "\"\ufeff\""}},
         {R"({"type": "string", "pattern": "[^a]{3}"})", {"\"bcd\""}, {"\"b\"d\"", "\"bc\""}}});
}

TEST(JsonSchema, FormatsAreEnforced) {
  Check(
      {{R"({"type": "string", "format": "date"})",
        {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
        {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-1-01\"", "\"2023-13-01\""}},
       {R"({"type": "string", "format": "time"})",
        {"\"23:59:59Z\"", "\"00:00:00.25+01:30\""},
        {"\"24:00:00Z\"", "\"10:00:00\"", "\"10:60:00Z\""}},
       {R"({"type": "string", "format": "date-time"})",
        {"\"2024-02-29T12:00:00Z\""},
        {"\"2024-02-30T12:00:00Z\"", "\"2024-02-29 12:00:00Z\""}},
       {R"({"type": "string", "format": "uuid"})",
        {"\"123e4567-e89b-12d3-a456-426614174000\""},
        {"\"123e4567e89b12d3a456426614174000\""}},
       {R"({"type": "string", "format": "ipv4"})",
        {"\"255.0.10.1\""},
        {"\"256.0.0.1\"", "\"01.2.3.4\"", "\"1.2.3\""}},
       {R"({"type": "string", "format": "ipv6"})",
        {"\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\""},
        {"\"1:2:3\"", "\":::\"", "\"1::2::3\"", "\"12345::\""}},
       {R"({"type": "string", "format": "email"})",
        {"\"a.b@example.org\""},
        {"\"a@\"", "\"@b\"", "\"a b@c\"", "\"a@localhost\"", "\"a@1.2\""}},
       {R"({"type": "string", "format": "hostname"})",
        {"\"a-b.example\"", "\"a\"", "\"ab\"", "\"a-c\"", "\"a--d\"", "\"a-c-e--f\""},
        {"\"-a\"", "\"a-\"", "\"a..b\"", "\"xn--x\"", "\"ab--c.d\""}},
       {R"({"type": "string", "format": "uri"})", {"\"https://a.b/c?d=e#f\""}, {"\"a b\""}},
       {R"({"type": "string", "format": "json-pointer"})",
        {"\"\"", "\"/a/~1b\""},
        {"\"a\"", "\"/~2\"", "\"/\"x\""}},
       {R"({"type": "string", "format": "duration"})",
        {"\"P1DT2H\"", "\"PT1H2M\"", "\"P3W\""},
        {"\"1D\"", "\"P\"", "\"P1DT\"", "\"P1234567D\""}}});
}

// Pydantic writes such schemas for its types HttpUrl, AnyUrl, UUID4 and SecretStr.
TEST(JsonSchema, FormatsMayHaveLengthsAndVersions) {
  const std::string long_uri = "\"https://a.b/" + std::string(300, 'c') + "\"";
  Check(
      {{R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})",
        {"\"https://example.org/a/b?c=d\"", "\"http://a.bc\""},
        {"\"\"", "\"a b\"", long_uri.c_str()}},
       {R"({"type": "string", "format": "uri", "minLength": 1})", {long_uri.c_str()}, {"\"\""}},
       {R"({"type": "string", "format": "email", "maxLength": 255})",
        {"\"a.b@example.org\""},
        {"\"a@\"", "\"@b\""}},
       {R"({"type": "string", "format": "date", "minLength": 10, "maxLength": 10})",
        {"\"2024-02-29\""},
        {"\"2024-02-30\""}},
       {R"({"type": "string", "format": "uuid4"})",
        {"\"123e4567-e89b-42d3-a456-426614174000\""},
        {"\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567-e89b-42d3-c456-426614174000\""}},
       {R"({"type": "string", "format": "ipvanyaddress"})",
        {"\"::1\"", "\"1.2.3.4\""},
        {"\"1.2.3\""}},
       {R"({"type": "string", "format": "base64"})",
        {"\"\"", "\"aGk=\"", "\"a+k/\""},
        {"\"aGk\"", "\"a-k_\""}},
       {R"({"type": "string", "format": "password", "minLength": 2})", {"\"ab\""}, {"\"a\"", "1"}},
       {R"({"type": "string", "format": "binary", "pattern": "a+"})", {"\"aa\""}, {"\"b\""}}});
}

TEST(JsonSchema, NumbersStayInTheirRange) {
  Check({{R"({"type": "integer", "minimum": -3, "maximum": 12})",
          {"-3", "0", "12", "7"},
          {"-4", "13", "100", "1.0"}},
         {R"({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 3})",
          {"1", "2"},
          {"0", "3"}},
         {R"({"type": "integer", "minimum": 1.5})", {"2", "1000"}, {"1", "0", "-5"}},
         // The bounds of a type: those of integers in JavaScript, and of 64 bits.
         {R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
          {"0", "-7", "999999999999999"},
          {"1.5", "9007199254740992"}},
         {R"({"type": "integer", "minimum": 0, "maximum": 18446744073709551615})",
          {"0", "12"},
          {"-1"}},
         {R"({"type": "number", "maximum": 1.7976931348623157e308})", {"2.5", "-3"}, {"\"a\""}},
         {R"({"type": "integer", "multipleOf": 7})", {"0", "-14", "21"}, {"8", "1"}},
         {R"({"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 16})",
          {"5", "10", "15"},
          {"0", "3", "20"}},
         {R"({"type": "number", "minimum": 0, "maximum": 1})",
          {"0", "1", "0.25", "0.999999", "1.0"},
          {"1.000001", "-0.1", "2"}},
         {R"({"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25})",
          {"-1.4", "0", "2.249"},
          {"-1.5", "2.25", "3"}},
         {R"({"type": "number", "minimum": 2.5, "maximum": 2.5})", {"2.5"}, {"2", "2.6"}},
         {R"({"type": "number", "multipleOf": 1})", {"3"}, {"3.5"}}});
}

TEST(JsonSchema, EnumAndConstAreExact) {
  Check({{R"({"enum": ["a/b", "é", 1, null, {"x": [1, true]}]})",
          {"\"a/b\"", "\"é\"", "1", "null", R"({"x":[1,true]})"},
          {"2", "\"a\"", "{}"}},
         {R"({"const": "yes"})", {"\"yes\""}, {"\"no\"", "yes"}},
         {R"({"type": "string", "enum": ["a", 1, "b"]})", {"\"a\"", "\"b\""}, {"1"}},
         {R"({"enum": [1, 2], "const": 2})", {"2"}, {"1"}}});
}

TEST(JsonSchema, ArraysHaveTheirItems) {
  Check(
      {{R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
        {"[1]", "[1,2,3]", "[ 1 , 2 ]"},
        {"[]", "[1,2,3,4]", "[true]"}},
       {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]})",
        {"[]", "[1]", "[1, \"a\"]"},
        {"[\"a\"]", "[1, \"a\", 2]"}},
       {R"({"type": "array", "prefixItems": [{"type": "integer"}, true], "items": {"type": "null"},
              "minItems": 3})",
        {"[1, {}, null]", "[1, 2, null, null]"},
        {"[1, 2]", "[1, 2, 3]"}},
       {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
       {R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1})",
        {"[]", "[1]"},
        {"[1, 2]"}},
       {R"({"type": "array", "uniqueItems": true, "maxItems": 1})", {"[]", "[5]"}, {"[1, 1]"}},
       {R"({"type": "array", "unevaluatedItems": {"type": "null"}})", {"[null]"}, {"[1]"}}});
}

TEST(JsonSchema, ObjectsFollowTheOrderOfTheSchema) {
  Check({{R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
              "required": ["b"]})",
          {R"({"b": 1})", R"({"b": 1, "a": "x"})", "{\"b\":1\n}"},
          {"{}", R"({"a": "x", "b": 1})", R"({"b": 1, "c": 2})", R"({"b": "x"})"}},
         {R"({"type": "object", "properties": {"a": {"type": "null"}}})",
          {"{}", R"({"a": null})"},
          {R"({"b": null})"}},
         {R"({"type": "object", "properties": {"a": {"type": "null"}},
              "additionalProperties": {"type": "integer"}})",
          {"{}", R"({"a": null, "b": 1})", R"({"x": 1, "y": 2})"},
          {R"({"b": null})", R"({"a": 1})"}},
         {R"({"type": "object", "additionalProperties": {"type": "boolean"}})",
          {"{}", R"({"x": true})"},
          {R"({"x": 1})"}},
         {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"a": 1})"}},
         {R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "z"],
              "additionalProperties": true})",
          {R"({"a": null, "z": 5})", R"({"a": null, "z": 5, "q": 1})"},
          {R"({"a": null})"}},
         {R"({"type": "object", "properties": {"a": false, "b": {"const": 1}}})",
          {R"({"b": 1})", "{}"},
          {R"({"a": 1})"}},
         {R"({"type": "object", "properties": {"a": true, "b": true, "c": true}, "minProperties": 2,
              "maxProperties": 2})",
          {R"({"a": 1, "b": 2})", R"({"b": 1, "c": 2})", R"({"a": 1, "c": 2})"},
          {R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})", "{}"}},
         {R"({"type": "object", "maxProperties": 1})",
          {"{}", R"({"a": 1})"},
          {R"({"a": 1, "b": 2})"}},
         {R"({"type": "object", "unevaluatedProperties": {"const": 1}})",
          {R"({"a": 1})"},
          {R"({"a": 2})"}}});
}

TEST(JsonSchema, PropertyNamesMatchPatterns) {
  Check({{R"({"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}},
              "additionalProperties": false})",
          {"{}", R"({"x1": 5, "x2": 6})"},
          {R"({"y1": 5})", R"({"x1": "a"})", R"({"x12": 5})"}},
         {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}})",
          {"{}", R"({"abc": 1, "d": null})"},
          {R"({"A": 1})"}},
         {R"({"type": "object", "propertyNames": {"enum": ["k", "l"]},
              "additionalProperties": {"type": "boolean"}})",
          {R"({"k": true})"},
          {R"({"k": 1})", R"({"m": true})"}},
         {R"({"type": "object", "propertyNames": {"maxLength": 1},
              "unevaluatedProperties": {"type": "number"}})",
          {R"({"k": 1})"},
          {R"({"k": "a"})"}}});
}

TEST(JsonSchema, ReferencesAreResolved) {
  Check(
      {{R"({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}})",
        {"[1, 2]"},
        {"[\"a\"]"}},
       {R"({"definitions": {"a/b c": {"const": 1}}, "$ref": "#/definitions/a~1b%20c"})",
        {"1"},
        {"2"}},
       {R"({"type": "object", "properties": {"value": {"type": "integer"},
              "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"]})",
        {R"({"value": 1, "next": {"value": 2, "next": null}})"},
        {R"({"value": 1})", R"({"value": 1, "next": 5})"}},
       {R"({"$id": "https://example.org/s", "$schema": "https://json-schema.org/draft/2020-12/schema",
              "type": "object", "properties": {"a": {"const": 1}, "b": {"$ref": "#/properties/a"}}})",
        {R"({"a": 1, "b": 1})"},
        {R"({"b": 2})"}}});
}

TEST(JsonSchema, SchemasAreCombined) {
  Check({{R"({"anyOf": [{"type": "integer"}, {"const": "none"}]})", {"5", "\"none\""}, {"\"x\""}},
         {R"({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]})",
          {"\"a\"", "1", "null"},
          {"true"}},
         {R"({"oneOf": [
              {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
               "required": ["kind"]},
              {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}],
              "discriminator": {"propertyName": "kind"}})",
          {R"({"kind": "a", "x": 1})", R"({"kind": "c"})"},
          {R"({"kind": "b", "x": 1})", R"({"kind": "d"})"}},
         {R"({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
              "$defs": {"a": {"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]},
                        "b": {"type": "object", "properties": {"t": {"const": 2}}, "required": ["t"]}}})",
          {R"({"t": 1})", R"({"t": 2})"},
          {R"({"t": 3})"}},
         {R"({"allOf": [{"$ref": "#/$defs/base"}, {"type": "object",
              "properties": {"b": {"type": "string"}}, "required": ["b"]}], "title": "T",
              "$defs": {"base": {"type": "object", "properties": {"a": {"type": "integer"}},
                                 "required": ["a"]}}})",
          {R"({"a": 1, "b": "x"})"},
          {R"({"a": 1})", R"({"b": "x"})"}},
         {R"({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}, {"minimum": 3}]})",
          {"3", "5"},
          {"2", "6", "3.5"}},
         {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
              "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
          {R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 2})"},
          {"{}"}},
         {R"({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}})",
          {"\"ab\""},
          {"\"abc\""}},
         {R"({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}},
              {"type": "object", "properties": {"b": {"const": 2}}}], "unevaluatedProperties": false})",
          {R"({"a": 1, "b": 2})"},
          {R"({"c": 3})"}},
         {R"({"allOf": [{"properties": {"a": {"const": 1}}, "unevaluatedProperties": false}],
              "unevaluatedProperties": true})",
          {R"({"a": 1})"},
          {R"({"a": 1, "b": 2})"}},
         {R"({"allOf": [{"prefixItems": [{"const": 1}]}], "unevaluatedItems": {"const": 2}})",
          {"[1]", "[1, 2, 2]"},
          {"[2]", "[1, 1]"}}});
}

TEST(JsonSchema, WhiteSpaceIsChosen) {
  const char* schema = R"({"type": "object", "properties": {"a": {"type": "array"}}})";
  Check({{schema, {"{\"a\": [1,\n2] }", "{\"a\":[1,2]}"}, {}}}, JsonSpace::kAny);
  Check({{schema, {R"({"a": [1, 2]})"}, {R"({"a":[1,2]})", R"({ "a": []})"}}}, JsonSpace::kPython);
  Check({{schema, {R"({"a":[]})"}, {R"({"a": []})"}}}, JsonSpace::kNone);
  EXPECT_EQ(JsonSpaceOfPattern("[ \\n\\r\\t]*"), JsonSpace::kAny);
  EXPECT_EQ(JsonSpaceOfPattern("[\n\t\r ]*"), JsonSpace::kAny);
  EXPECT_EQ(JsonSpaceOfPattern(""), JsonSpace::kNone);
  EXPECT_EQ(JsonSpaceOfPattern("[ \\n]?"), std::nullopt);
}

TEST(JsonSchema, AnyObjectIsJson) {
  const GrammarSource source = JsonObjectGrammar();
  EXPECT_TRUE(Matches(source, R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(Matches(source, "[]"));
  EXPECT_FALSE(Matches(source, "{\"a\": \"\t\"}"));
}

TEST(JsonSchema, WhatCannotBeHonouredIsNamedWithItsPlace) {
  const std::vector<std::array<const char*, 3>> kRefused = {
      {R"({"not": {"type": "null"}})", "#:", "not"},
      {R"({"if": {"type": "null"}})", "#:", "if"},
      {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})",
       "#/properties/a:", "uniqueItems"},
      {R"({"type": "array", "contains": {"type": "null"}})", "#:", "contains"},
      {R"({"type": "array", "items": [{"type": "null"}]})", "#:", "items"},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", "#:", "dependentRequired"},
      {R"({"type": "object", "dependentSchemas": {}})", "#:", "dependentSchemas"},
      {R"({"type": "string", "format": "regex"})", "#:", "format regex"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})",
       "#:", "maxLength together with pattern"},
      {R"({"type": "string", "pattern": "a", "format": "date"})",
       "#:", "pattern together with format"},
      {R"({"type": "string", "format": "date", "maxLength": 9})",
       "#:", "maxLength 9 together with format"},
      {R"({"type": "string", "format": "uri", "minLength": 20})", "#:", "minLength 20 together"},
      {R"({"type": "integer", "minimum": 2e15})", "#:", "minimum"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "#:", "pattern"},
      {R"({"type": "string", "pattern": "\\bword"})", "#:", "pattern"},
      {R"({"type": "string", "pattern": "(a)\\1"})", "#:", "pattern"},
      {R"({"type": "string", "pattern": "\"quoted\""})", "#:", "pattern"},
      {R"({"type": "string", "pattern": "a(b"})", "#:", "pattern"},
      {R"({"type": "number", "multipleOf": 0.01})", "#:", "multipleOf"},
      {R"({"type": "integer", "multipleOf": 5000})", "", "multipleOf"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "#:", "minimum"},
      {R"({"type": "number", "minimum": 1, "maximum": 1.000001})", "#:", "narrower"},
      {R"({"type": "string", "nullable": true})", "#:", "nullable"},
      {R"({"type": "string", "maxLenght": 3})", "#:", "maxLenght"},
      {R"({"type": "text"})", "#:", "type"},
      {R"({"minimum": 1, "minLength": 2})", "#:", "type is missing"},
      {R"({"enum": ["a"], "minLength": 1})", "#:", "minLength together with enum"},
      {R"({"type": "string", "enum": [1]})", "#:", "enum"},
      {R"({"enum": []})", "#:", "enum"},
      {R"({"$ref": "https://example.org/x"})", "#:", "$ref"},
      {R"({"$ref": "#/$defs/missing"})", "#:", "$ref"},
      {R"({"$ref": "#"})", "#:", "$ref"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]},
           "b": {"$ref": "#/$defs/a"}}})",
       "#:", "$ref"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "#:", "$ref"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#:", "oneOf"},
      {R"({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}},
           {"type": "object", "properties": {"a": {"const": 2}}}]})",
       "#:", "oneOf"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "#/allOf/1:", "type"},
      {R"({"allOf": [{"type": "object", "properties": {"a": true}, "additionalProperties": false},
           {"type": "object", "properties": {"b": true}}]})",
       "#/allOf/1:", "additionalProperties"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "#/allOf/1:", "pattern"},
      {R"({"allOf": [{"prefixItems": [{"minimum": 3}]}], "items": {"minimum": 5}})",
       "#/allOf/0:", "items"},
      {R"({"allOf": [{"prefixItems": [true]}, {"unevaluatedItems": false}]})",
       "#/allOf/1:", "unevaluatedItems"},
      {R"({"type": "object", "required": ["a"], "properties": {}})", "#:", "required"},
      {R"({"type": "object", "minProperties": 2})", "#:", "minProperties"},
      {R"({"type": "object", "properties": {"a": true}, "patternProperties": {"b": true}})",
       "#:", "patternProperties together with properties"},
      {R"({"type": "object", "patternProperties": {"a": {"const": 1}, "b": {"const": 2}}})",
       "#:", "patternProperties"},
      {R"({"type": "object", "propertyNames": {"type": "integer"}})", "#:", "propertyNames"},
      {R"({"type": "object", "properties": {"a": {"$id": "x"}}})", "#/properties/a:", "$id"},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "#:", "required"},
      {"false", "#:", "false"},
      {"5", "#:", "not an object"},
      {R"({"type": "string", "maxLength": -1})", "#:", "maxLength"},
      {R"({"type": "array", "minItems": 3, "prefixItems": [true]})", "#:", "minItems"}};
  for (const auto& [schema, place, what] : kRefused) {
    EXPECT_THAT(InvalidMessage([&schema = schema] {
                  CompileGrammar(JsonSchemaGrammar(ParseTestJson(schema)), TestTable());
                }),
                AllOf(HasSubstr(place), HasSubstr(what)))
        << schema;
  }
}

TEST(JsonSchema, DeepAndLargeSchemasAreRefused) {
  nlohmann::ordered_json deep = {{"type", "null"}};
  for (int i = 0; i < 100; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_THAT(InvalidMessage([&] { JsonSchemaGrammar(deep); }), HasSubstr("nested deeper"));
  // Each definition refers twice to the next one, so expanding all of them gives 2^40 schemas.
  nlohmann::ordered_json doubling = {{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 40; ++i) {
    const nlohmann::ordered_json next = {{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
    doubling["$defs"][fmt::format("d{}", i)] = {{"allOf", {next, next}}};
  }
  doubling["$defs"]["d40"] = {{"type", "string"}};
  EXPECT_THAT(InvalidMessage([&] { JsonSchemaGrammar(doubling); }), HasSubstr("the schema"));
}

}  // namespace
}  // namespace switchyard
