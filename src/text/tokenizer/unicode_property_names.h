// Names of Unicode properties in regular expressions.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// PCRE2's name of the property that Oniguruma calls `name`. `name` is in lower case, without
// spaces, hyphens and underscores: "lowercaseletter" -> "Ll", "han" -> "sc:han" (PCRE2's plain
// "Han" means script extensions).
std::string Pcre2PropertyName(std::string_view name);

}  // namespace switchyard
