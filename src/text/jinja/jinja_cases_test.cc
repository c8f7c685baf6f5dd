// The cases of tests/data/jinja/cases.json: outputs and errors equal those of Jinja2, verbatim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "text/jinja/template.h"

namespace switchyard::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadFile(const std::string& name) {
  std::ifstream in(std::string(SWITCHYARD_TEST_DATA) + "/jinja/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

RenderOptions AtFixedTime() {
  std::tm local{};
  local.tm_year = 2026 - 1900;
  local.tm_mon = 2;
  local.tm_mday = 7;
  local.tm_hour = 14;
  local.tm_min = 5;
  local.tm_sec = 9;
  local.tm_isdst = -1;
  RenderOptions options;
  options.now = std::mktime(&local);
  return options;
}

// Compares one rendering with `expected`: {text} or {error, line, exact}.
void Check(const std::string& source, const Json& variables, const Json& expected) {
  try {
    Rendered rendered =
        Template::Parse(source, "case").Render(variables, Json::object(), AtFixedTime());
    ASSERT_TRUE(expected.contains("text"))
        << "printed " << rendered.text << "\nwhere Jinja2 says " << expected["error"];
    EXPECT_EQ(rendered.text, expected["text"].get<std::string>());
  } catch (const TemplateError& error) {
    ASSERT_TRUE(expected.contains("error")) << error.what();
    if (!expected.value("exact", true)) return;
    EXPECT_EQ(error.message(), expected["error"].get<std::string>());
    EXPECT_EQ(error.line(), expected["line"].get<int>());
  }
}

TEST(JinjaCases, SmallTemplatesDoWhatJinja2Does) {
  Json data = Json::parse(ReadFile("cases.json"));
  for (const Json& expected : data["cases"]) {
    std::string source = expected["template"];
    SCOPED_TRACE(source);
    Check(source, data["variables"], expected);
  }
}

TEST(JinjaCases, ModelTemplatesDoWhatJinja2Does) {
  Json data = Json::parse(ReadFile("cases.json"));
  Json conversations = Json::parse(ReadFile("conversations.json"));
  EXPECT_GT(data["chats"].size(), 40u);
  for (const Json& expected : data["chats"]) {
    std::string name = expected["template"];
    std::string conversation = expected["conversation"];
    SCOPED_TRACE(name + " with " + conversation);
    Check(ReadFile(name), conversations[conversation], expected);
  }
}

}  // namespace
}  // namespace switchyard::jinja
