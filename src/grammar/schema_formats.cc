// Formats of strings, as expressions that match the whole string.
#include <map>
#include <string_view>

#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

// Accepts only days that exist: 31 or 30 days by month, and February 29 in leap years only.
constexpr std::string_view kDate =
    R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime =
    R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
constexpr std::string_view kByte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
// A label of a host name: at most 63 characters. Labels with hyphens as third and fourth character
// are excluded: they are reserved for Punycode (RFC 5891), in which not every text is valid.
std::string Label() {
  const std::string a = "[A-Za-z0-9]", any = "[A-Za-z0-9-]";
  return fmt::format("{0}({1}?{0}|{1}{1}{0}|{1}({1}{0}|{0}-){1}{{0,58}}{0})?", a, any);
}

// Eight groups of hexadecimal digits, or fewer with one "::".
std::string Ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::string all = fmt::format("({}:){{7}}{}", group, group);
  for (int left = 1; left <= 6; ++left)
    all += fmt::format("|({}:){{{}}}(:{}){{1,{}}}", group, left, group, 7 - left);
  return fmt::format("({}|({}:){{1,7}}:|:(:{}){{1,7}}|::)", all, group, group);
}

std::map<std::string, std::string, std::less<>> MakePatterns() {
  const std::string date(kDate), time(kTime), byte(kByte), label = Label();
  // RFC 6901: no '/' and no '~' in a part, except in "~0" and "~1".
  const std::string parts = R"((/([^/~]|~[01])*)*)";
  return {{"date", date},
          {"time", time},
          {"date-time", date + "T" + time},
          {"ipv4", fmt::format("({}\\.){{3}}{}", byte, byte)},
          {"ipv6", Ipv6()},
          {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
          {"hostname", fmt::format("{}(\\.{}){{0,3}}", label, label)},
          {"email",
           fmt::format(R"([A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+)*@{}(\.{}){{0,3}})", label, label)},
          {"json-pointer", parts},
          {"relative-json-pointer", "(0|[1-9]\\d*)(#|" + parts + ")"},
          // Compiled by XGrammar.
          {"duration", ""},
          {"uri", ""},
          {"uri-reference", ""},
          {"uri-template", ""}};
}

}  // namespace

std::string PatternOfFormat(const std::string& format, const std::string& path) {
  static const auto kPatterns = MakePatterns();
  const auto found = kPatterns.find(format);
  if (found != kPatterns.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, pattern] : kPatterns) names.push_back(name);
  throw SchemaError(path, "format {} is not supported: want {}", format, Joined(names, ", "));
}

}  // namespace switchyard
