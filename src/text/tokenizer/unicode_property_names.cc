#include "text/tokenizer/unicode_property_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace switchyard {
namespace {

// Long names of General_Category and POSIX names, which PCRE2 lacks.
constexpr std::array<std::pair<std::string_view, std::string_view>, 42> kPropertyNames = {{
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"casedletter", "L&"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"alpha", "Alphabetic"},
    {"space", "White_Space"},
    {"digit", "Nd"},
    {"lc", "L&"},
}};

// Names of properties that are not scripts; every other name longer than a category is a script.
constexpr std::array<std::string_view, 14> kBinaryProperties = {"any",
                                                                "ascii",
                                                                "alphabetic",
                                                                "whitespace",
                                                                "uppercase",
                                                                "lowercase",
                                                                "emoji",
                                                                "math",
                                                                "dash",
                                                                "ideographic",
                                                                "emojipresentation",
                                                                "extendedpictographic",
                                                                "unifiedideograph",
                                                                "hexdigit"};

}  // namespace

std::string Pcre2PropertyName(std::string_view name) {
  for (const auto& [from, to] : kPropertyNames) {
    if (name == from) return std::string(to);
  }
  std::string out(name);
  if (out.size() <= 2) {  // a category: L, Lu
    if (!out.empty()) out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
    return out;
  }
  const bool binary = std::find(kBinaryProperties.begin(), kBinaryProperties.end(), name) !=
                      kBinaryProperties.end();
  const bool qualified = name.find_first_of(":=") != std::string_view::npos;
  return binary || qualified ? out : "sc:" + out;
}

}  // namespace switchyard
