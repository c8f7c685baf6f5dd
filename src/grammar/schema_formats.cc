// Formats of strings, as expressions that match the whole string.
#include <algorithm>
#include <array>
#include <limits>
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

constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

// RFC 3339, appendix A. Numbers have at most six digits, because programs limit durations.
std::string Duration() {
  const std::string n = R"(\d{1,6})";
  const std::string minutes = fmt::format("{0}M({0}S)?", n), months = fmt::format("{0}M({0}D)?", n);
  const std::string time = fmt::format("T({0}S|{1}|{0}H({1})?)", n, minutes);
  const std::string date = fmt::format("({0}D|{1}|{0}Y({1})?)", n, months);
  return fmt::format("P({0}({1})?|{1}|{2}W)", date, time, n);
}

// The strings of a format, and bounds of their lengths in characters.
struct Strings {
  std::string pattern;  // empty: XGrammar implements the format
  int64_t least = 0, most = kAnyLength;
};

struct StringFormat {
  Strings strings;
  // Shorter strings, for schemas with a maxLength. Without them, `most` is kAnyLength.
  Strings bounded = {};
};

// A version is the first digit of the third group (RFC 9562). Empty: any version and variant.
Strings Uuid(std::string_view version) {
  const std::string hex = "[0-9a-fA-F]";
  const std::string middle = version.empty()
                                 ? fmt::format("{0}{{4}}-{0}{{4}}", hex)
                                 : fmt::format("{1}{0}{{3}}-[89abAB]{0}{{3}}", hex, version);
  return {fmt::format("{0}{{8}}-{0}{{4}}-{1}-{0}{{12}}", hex, middle), 36, 36};
}

std::map<std::string, StringFormat, std::less<>> MakeFormats() {
  const std::string date(kDate), time(kTime), byte(kByte), label = Label();
  // RFC 6901: no '/' and no '~' in a part, except in "~0" and "~1".
  const std::string parts = R"((/([^/~]|~[01])*)*)";
  const std::string ipv4 = fmt::format("({}\\.){{3}}{}", byte, byte), ipv6 = Ipv6();
  // Domain of an email address. Many programs refuse one without a dot or with a numeric last
  // label.
  const std::string domain = fmt::format(R"({0}(\.{0}){{0,2}}\.[A-Za-z]{{2,24}})", label);
  // Domains of at most 56 characters.
  const std::string short_domain = R"(([a-z0-9]{1,15}(-[a-z0-9]{1,8})?\.){1,2}[a-z]{2,6})";
  std::map<std::string, StringFormat, std::less<>> formats = {
      {"date", {{date, 10, 10}}},
      {"time", {{time, 9, 24}}},
      {"date-time", {{date + "T" + time, 20, 35}}},
      {"ipv4", {{ipv4, 7, 15}}},
      {"ipv6", {{ipv6, 2, 39}}},
      {"ipvanyaddress", {{fmt::format("({}|{})", ipv4, ipv6), 2, 39}}},
      {"uuid", {Uuid("")}},
      {"hostname", {{fmt::format("{}(\\.{}){{0,3}}", label, label), 1, 255}}},
      {"email",
       {{fmt::format(R"([A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+)*@{})", domain), 6},
        {R"([A-Za-z0-9_%+-]{1,24}(\.[A-Za-z0-9_%+-]{1,15})?@)" + short_domain, 6, 97}}},
      {"base64", {{"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"}}},
      {"base64url", {{"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?"}}},
      {"json-pointer", {{parts}}},
      {"relative-json-pointer", {{"(0|[1-9]\\d*)(#|" + parts + ")", 1}}},
      {"duration", {{Duration(), 3, 44}}},
      {"uri",
       {{"", 2},
        {"https?://" + short_domain +
             R"((/[A-Za-z0-9._~-]{0,30}){0,3}(\?[A-Za-z0-9._~=&-]{0,30})?)",
         11, 188}}},
      {"uri-reference", {}},
      {"uri-template", {}}};
  for (const char* version : {"1", "2", "3", "4", "5", "6", "7", "8"})
    formats[fmt::format("uuid{}", version)] = {Uuid(version)};
  return formats;
}

}  // namespace

bool IsFormatOfAnyString(std::string_view format) {
  constexpr std::array kNames = {"password", "binary", "path", "file-path", "directory-path"};
  return std::ranges::find(kNames, format) != kNames.end();
}

std::string PatternOfFormat(const std::string& format, int64_t least, int64_t most,
                            const std::string& path) {
  static const auto kFormats = MakeFormats();
  const auto found = kFormats.find(format);
  if (found == kFormats.end()) {
    std::vector<std::string> names;
    for (const auto& [name, strings] : kFormats) names.push_back(name);
    throw SchemaError(path, "format {} is not supported: want {}", format, Joined(names, ", "));
  }
  const auto& [strings, bounded] = found->second;
  for (const Strings* choice : {&strings, &bounded})
    if (choice->least >= least && choice->most <= most) return choice->pattern;
  const bool too_short = strings.least < least;
  throw SchemaError(path, "{} {} together with format {} is not supported",
                    too_short ? "minLength" : "maxLength", too_short ? least : most, format);
}

}  // namespace switchyard
