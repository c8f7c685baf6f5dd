// Translates the regular expressions of tokenizer.json to PCRE2 syntax.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// Hugging Face matches with Oniguruma in its Ruby syntax. These differences are translated:
// - the Unicode meaning of \s \w \h \v, \p{Han} as script (not script extensions), long category
//   names;
// - nested classes and their intersection with &&;
// - (?m) for "dot matches newline", the scope of (?i), {n,m}+ as a repeated group (possessive in
//   PCRE2), {,n}.
//
// Compile the result with UTF, UCP and MULTILINE. Throws Error for malformed patterns that it
// detects; `where` names file and key.
std::string OnigurumaToPcre2(std::string_view pattern, std::string_view where);

}  // namespace switchyard
