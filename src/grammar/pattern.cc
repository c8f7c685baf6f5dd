#include <chrono>

#include "core/error.h"
#include "core/json.h"
#include "grammar/compiler.h"
#include "grammar/xgrammar_impl.h"

namespace switchyard {
namespace {

constexpr size_t kMaxBytes = 4096;

// Writes code points beyond ASCII as \u{…}. If an expression has such code points directly,
// XGrammar does not exclude quotes, backslashes and control characters.
std::string InAscii(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size();) {
    const auto lead = static_cast<unsigned char>(pattern[i]);
    if (lead < 0x80) {
      if (lead < 0x20) throw Invalid("it has a control character");
      out += pattern[i++];
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || i + length > pattern.size()) throw Invalid("it is not valid UTF-8");
    uint32_t code = lead & (0xff >> (length + 1));
    for (size_t k = 1; k < length; ++k)
      code = code << 6 | (static_cast<unsigned char>(pattern[i + k]) & 0x3f);
    out += fmt::format("\\u{{{:x}}}", code);
    i += length;
  }
  return out;
}

// Writes \S outside of character classes as a class that excludes all white space of ECMAScript.
// XGrammar's \S excludes white space in ASCII only.
std::string WithoutUnicodeSpace(const std::string& pattern) {
  constexpr const char* kNoSpace =
      R"([^\s\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}])";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      out += escaped == 'S' && !in_class ? kNoSpace : std::string{'\\', escaped};
      continue;
    }
    if (pattern[i] == '[') in_class = true;
    if (pattern[i] == ']') in_class = false;
    out += pattern[i];
  }
  return out;
}

}  // namespace

std::string StringPattern(const std::string& pattern) {
  if (pattern.size() > kMaxBytes)
    throw Invalid("it has {} bytes, want at most {}", pattern.size(), kMaxBytes);
  const std::string ascii = WithoutUnicodeSpace(InAscii(pattern));
  LimitRecursion();
  CompileBudget budget(std::chrono::seconds(2), size_t{64} << 20);
  const nlohmann::json schema = {{"type", "string"}, {"pattern", ascii}};
  const auto grammar = xgrammar::Grammar::FromJSONSchema(schema.dump());
  budget.CheckWarnings();
  // Without "json_string=true" in the printed grammar, XGrammar has not excluded quotes,
  // backslashes and control characters from the expression.
  if (grammar.ToString().find("json_string=true") == std::string::npos)
    throw Invalid(
        "{} has a construct that is not supported, or matches only texts that JSON writes with "
        "escapes",
        pattern);
  return ascii;
}

}  // namespace switchyard
