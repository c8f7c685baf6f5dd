// Search, strip, split and replace for string methods and filters. Results keep the runs of the
// text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/context.h"
#include "text/jinja/text.h"

namespace switchyard::jinja {

// Byte offset of the first occurrence at or after `from`; npos if there is none. Linear time.
size_t FindBytes(Context& context, std::string_view haystack, std::string_view needle,
                 size_t from = 0);
// Byte offset of the last occurrence; npos if there is none.
size_t RFindBytes(Context& context, std::string_view haystack, std::string_view needle);

// Strips white space, or the characters in `chars`, from the selected ends.
Text Strip(Context& context, const Text& text, const std::optional<Text>& chars, bool left,
           bool right);

// Replaces at most `count` occurrences; negative: all.
Text Replace(Context& context, const Text& text, const Text& from, const Text& to, Int count);

// str.split and str.rsplit. A missing separator splits at runs of white space. At most `limit`
// splits; negative: all.
std::vector<Text> Split(Context& context, const Text& text, const std::optional<Text>& separator,
                        Int limit, bool from_right);
std::vector<Text> SplitLines(Context& context, const Text& text, bool keep_ends);

Text Upper(Context& context, const Text& text);
Text Lower(Context& context, const Text& text);
Text Capitalize(Context& context, const Text& text);

}  // namespace switchyard::jinja
