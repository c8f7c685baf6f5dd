#include "text/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace switchyard::jinja {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// The rendering with each untrusted run in [brackets]. `u` and `m` come from the request, `bos`
// does not.
std::string Marked(const std::string& source) {
  Json untrusted = {
      {"u", "user"}, {"sp", "  pad  "}, {"m", {{"role", "r"}, {"n", 5}}}, {"bos", "forged"}};
  Rendered rendered = Template::Parse(source, "t").Render(untrusted, {{"bos", "<s>"}});
  std::string out;
  size_t at = 0;
  for (const Run& run : rendered.runs) {
    EXPECT_EQ(run.begin, at);
    EXPECT_LT(run.begin, run.end);
    at = run.end;
    std::string part = rendered.text.substr(run.begin, run.end - run.begin);
    out += run.trusted ? part : "[" + part + "]";
  }
  EXPECT_EQ(at, rendered.text.size());
  return out;
}

TEST(JinjaTrust, LiteralsAndTrustedVariablesAreTrusted) {
  EXPECT_EQ(Marked("text {{ 'literal' }} {{ bos }} {{ 1 + 1 }} {{ none }}"),
            "text literal <s> 2 None");
}

TEST(JinjaTrust, ATrustedVariableWinsOverARequestsOfTheSameName) {
  EXPECT_EQ(Marked("{{ bos }}"), "<s>");
}

TEST(JinjaTrust, ConcatenationKeepsBothSides) {
  EXPECT_EQ(Marked("{{ '<|' + u + '|>' }}"), "<|[user]|>");
  EXPECT_EQ(Marked("{{ '<|' ~ m.role ~ '|>' ~ u }}"), "<|[r]|>[user]");
  EXPECT_EQ(Marked("{{ ['a', u, 'b'] | join('-') }}"), "a-[user]-b");
  EXPECT_EQ(Marked("{{ '%s|%s' % ('a', u) }}"), "a|[user]");
  EXPECT_EQ(Marked("{{ '{}!'.format(u) }}"), "[user]!");
}

TEST(JinjaTrust, PartsOfStringsKeepTheirRuns) {
  EXPECT_EQ(Marked("{{ ('<' + u + '>')[1:] }}"), "[user]>");
  EXPECT_EQ(Marked("{{ ('<' + u + '>')[::-1] }}"), ">[resu]<");
  EXPECT_EQ(Marked("{{ ('a' + sp + 'b') | replace(' ', '_') }}"), "a__[pad]__b");
  EXPECT_EQ(Marked("{{ ' x' + sp | trim }}"), " x[pad]");
  EXPECT_EQ(Marked("{{ (sp + 'x ') | trim }}"), "[pad  ]x");
  EXPECT_EQ(Marked("{{ ('k=' + u).split('=') | last }}"), "[user]");
  EXPECT_EQ(Marked("{% for c in 'a' + u %}{{ c }}.{% endfor %}"), "a.[u].[s].[e].[r].");
}

TEST(JinjaTrust, CaseMappingKeepsRuns) {
  EXPECT_EQ(Marked("{{ ('a' + u) | upper }}{{ ('A' + u).title() }}"), "A[USER]A[user]");
}

TEST(JinjaTrust, ContainersAreUntrustedIfAnyStringInThemIs) {
  EXPECT_EQ(Marked("{{ {'k': 'v'} | tojson }}"), R"({"k": "v"})");
  EXPECT_EQ(Marked("{{ {'k': u} | tojson }}"), R"([{"k": "user"}])");
  EXPECT_EQ(Marked("{{ m | tojson }}"), R"([{"role": "r", "n": 5}])");
  EXPECT_EQ(Marked("{{ ['a', u] }}"), "[['a', 'user']]");
  EXPECT_EQ(Marked("{{ ['a', 1] }}"), "['a', 1]");
}

TEST(JinjaTrust, BlocksAndMacrosKeepRuns) {
  EXPECT_EQ(Marked("{% set x %}<{{ u }}>{% endset %}{{ x }}"), "<[user]>");
  EXPECT_EQ(Marked("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(u) }}"), "<[user]>");
  EXPECT_EQ(Marked("{% filter trim %} <{{ u }}> {% endfilter %}"), "<[user]>");
}

// Limits with unlimited CPU time, so that results do not depend on the speed of the machine.
RenderOptions Untimed(int64_t max_steps, size_t max_bytes) {
  return {.max_steps = max_steps, .max_bytes = max_bytes, .max_cpu_seconds = 1e9};
}

// The message of the TemplateError for `source`.
std::string ErrorOf(const std::string& source,
                    const RenderOptions& options = Untimed(500'000, 8 << 20)) {
  try {
    Json variables = {{"text", std::string(1000, 'x')}};
    Template::Parse(source, "t").Render(variables, Json::object(), options);
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.message();
  }
  return "no error";
}

TEST(JinjaLimits, LoopsEnd) {
  const RenderOptions options = Untimed(500'000, 64 << 20);
  EXPECT_THAT(
      ErrorOf("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
              options),
      HasSubstr("steps"));
  EXPECT_THAT(
      ErrorOf("{% set big = text * 999 %}{% for a in range(9999) %}{{ 'y' in big }}{% endfor %}",
              options),
      HasSubstr("steps"));
}

TEST(JinjaLimits, MemoryIsBounded) {
  EXPECT_THAT(ErrorOf("{% set x = text * 100000000 %}"), HasSubstr("bytes"));
  EXPECT_THAT(ErrorOf("{% set x = [1] * 1000000000 %}"), HasSubstr("more than"));
  EXPECT_THAT(ErrorOf("{{ 'x' * (2 ** 62) }}"), HasSubstr("too often"));
  EXPECT_THAT(ErrorOf("{{ '%999999999d' % 1 }}"), HasSubstr("Too many"));
  EXPECT_THAT(ErrorOf("{{ 'x'.ljust(2 ** 50) }}"), HasSubstr("width"));
  EXPECT_THAT(ErrorOf("{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + "
                      "n.s %}{% endfor %}",
                      Untimed(10'000'000, 8 << 20)),
              HasSubstr("bytes"));
}

TEST(JinjaLimits, FreedMemoryDoesNotCount) {
  const RenderOptions options = Untimed(10'000'000, 1 << 20);
  EXPECT_EQ(ErrorOf("{% for i in range(200) %}{% set x = text * 100 %}{{ (x ~ x)[:1] }}"
                    "{{ x.split(' ') | length }}{{ {'a': x} | tojson | length }}{% endfor %}",
                    options),
            "no error");
  EXPECT_EQ(ErrorOf("{% macro f(a) %}{{ a }}{% endmacro %}{% for i in range(200) %}"
                    "{% set x %}{{ text * 100 }}{% endset %}{{ f(x)[:1] }}"
                    "{% filter length %}{{ x }}{% endfilter %}{% endfor %}",
                    options),
            "no error");
  EXPECT_EQ(
      ErrorOf("{% set n = namespace(x='') %}{% for i in range(5000) %}{% set n.x = text ~ i %}"
              "{% set c = cycler(1, 2) %}{{ n.y }}{% endfor %}",
              options),
      "no error");
  EXPECT_EQ(ErrorOf("{% macro f() %}{{ varargs | length }}{{ caller() }}{% endmacro %}"
                    "{% set l = range(1000) | list %}"
                    "{% for i in range(200) %}{% call f(*l) %}x{% endcall %}{% endfor %}",
                    options),
            "no error");
}

TEST(JinjaLimits, LiveValuesOfAllTypesCount) {
  const RenderOptions options = Untimed(10'000'000, 1 << 20);
  const std::string message = "the template uses more than 1048576 bytes";
  // Renders a template that holds 8000 values in a list.
  const auto holding = [&](const std::string& value) {
    std::string values = value;
    for (int i = 1; i < 200; ++i) values += ", " + value;
    return ErrorOf("{% set n = namespace(x=[]) %}{% for i in range(40) %}{% set n.x = n.x + [" +
                       values + "] %}{% endfor %}",
                   options);
  };
  EXPECT_EQ(holding("i"), "no error");
  for (const char* value : {"[i]", "(i, i)", "{i: i}", "text ~ i", "namespace()", "joiner(i)",
                            "cycler(i)", "text.upper", "n.missing"}) {
    EXPECT_EQ(holding(value), message) << value;
  }
  EXPECT_EQ(ErrorOf("{% macro f(k) %}{% set a = text ~ k %}{{ f(k + 1) }}{% endmacro %}{{ f(0) }}",
                    Untimed(10'000'000, 100'000)),
            "the template uses more than 100000 bytes");
  EXPECT_EQ(ErrorOf("{% for i in range(2000) %}{{ text }}{% endfor %}", options), message);
}

TEST(JinjaLimits, CpuTimeIsBounded) {
  static double seconds;  // time of a fake clock, which advances by 0.1 s at each read
  seconds = 0;
  RenderOptions options;
  options.cpu_clock = [] { return seconds += 0.1; };
  const std::string loop = "{% for i in range(99999) %}{% set x = i %}{% endfor %}";
  EXPECT_EQ(ErrorOf(loop, options), "the template takes more than 1 s of CPU time");
  options.max_cpu_seconds = 1e9;
  EXPECT_EQ(ErrorOf(loop, options), "no error");
}

TEST(JinjaLimits, SourcesAreBounded) {
  EXPECT_EQ(ErrorOf(std::string(Template::kMaxSourceBytes, 'x')), "no error");
  EXPECT_EQ(ErrorOf(std::string(Template::kMaxSourceBytes + 1, 'x')),
            "the template has 1048577 bytes, at most 1048576 are allowed");
}

TEST(JinjaLimits, OutputIsBounded) {
  RenderOptions options;
  options.max_output = 5000;
  EXPECT_EQ(ErrorOf("{{ text }}{{ text }}", options), "no error");
  EXPECT_THAT(ErrorOf("{% for i in range(6) %}{{ text }}{% endfor %}", options),
              HasSubstr("output"));
}

TEST(JinjaLimits, RecursionIsBounded) {
  EXPECT_THAT(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("recursion"));
  EXPECT_THAT(ErrorOf("{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = [n.x] "
                      "%}{% endfor %}"),
              HasSubstr("nest"));
  EXPECT_THAT(ErrorOf("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("deep"));
  std::string sum = "1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  EXPECT_THAT(ErrorOf("{{ " + sum + " }}"), HasSubstr("too long"));
  std::string ifs;
  for (int i = 0; i < 5000; ++i) ifs += "{% if 1 %}";
  EXPECT_THAT(ErrorOf(ifs), HasSubstr("deep"));
}

TEST(JinjaLimits, SharedStructureCountsEachTime) {
  // A tree of 2^150 leaves in 150 nodes: printing and comparing it must exceed a budget.
  std::string grow =
      "{% set n = namespace(x=['a']) %}{% for i in range(150) %}{% set n.x = [n.x, n.x] %}{% "
      "endfor %}";
  EXPECT_THAT(ErrorOf(grow + "{{ n.x }}"), HasSubstr("more than"));
  EXPECT_THAT(ErrorOf(grow + "{{ n.x | tojson }}"), HasSubstr("more than"));
  EXPECT_THAT(ErrorOf(grow + "{% set a = n.x %}" + grow + "{{ a == n.x }}"),
              HasSubstr("more than"));
}

TEST(JinjaErrors, SayTemplateLineAndTheTemplatesOwnMessage) {
  try {
    Template::Parse("a\n\n{{ raise_exception('roles must alternate') }}",
                    "model/chat_template.jinja")
        .Render(Json::object(), Json::object());
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.message(), "roles must alternate");
    EXPECT_EQ(error.line(), 3);
    EXPECT_STREQ(error.what(), "model/chat_template.jinja, line 3: roles must alternate");
  }
}

TEST(JinjaErrors, TheMessageMayComeFromTheRequest) {
  EXPECT_EQ(ErrorOf("{{ raise_exception('role ' ~ text[:3]) }}"), "role xxx");
}

TEST(JinjaErrors, BadUtf8IsRefused) {
  EXPECT_THROW(Template::Parse("a\xff", "t"), TemplateError);
  EXPECT_THROW(Template::Parse("{{ a }}", "t").Render({{"a", "\xff"}}, Json::object()),
               TemplateError);
}

TEST(JinjaErrors, DeepRequestsAreRefused) {
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THROW(Template::Parse("x", "t").Render({{"a", deep}}, Json::object()), TemplateError);
}

TEST(JinjaTemplate, CyclesThroughNamespacesAndMacrosAreFreed) {
  // The address sanitizer detects leaks.
  EXPECT_EQ(Marked("{% set n = namespace() %}{% set n.self = n %}{% set n.list = [n] %}"
                   "{% macro f() %}{% endmacro %}{% set g = f %}{% set n.f = f %}"
                   "{% for x in [1] recursive %}{% set n.loop = loop %}{% endfor %}ok"),
            "ok");
}

TEST(JinjaTemplate, OneTemplateRendersOnManyThreads) {
  Template shared =
      Template::Parse("{% for i in range(50) %}{{ x }}{{ 'lit' | upper }}{% endfor %}", "t");
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] { texts[i] = shared.Render({{"x", i}}, Json::object()).text; });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_THAT(texts[i], ::testing::StartsWith(std::to_string(i) + "LIT"));
}

}  // namespace
}  // namespace switchyard::jinja
