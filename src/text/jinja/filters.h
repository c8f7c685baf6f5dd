// The filters of `value | filter(arguments)`.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Applies the filter `name` to `input`. Raises if there is no such filter.
Value ApplyFilter(Context& context, const std::string& name, const Value& input,
                  const Arguments& arguments);

bool HasFilter(std::string_view name);

using Filter = Value (*)(Context& context, const Value& input, const Arguments& arguments);

// Filters by category. Each lookup returns null if it has no filter of that name.
Filter FindTextFilter(std::string_view name);      // strings to strings
Filter FindSequenceFilter(std::string_view name);  // over the elements of an iterable
Filter FindSelectFilter(
    std::string_view name);  // map, select, sort and others that look into elements
Filter FindValueFilter(std::string_view name);   // numbers, defaults, JSON
Filter FindHtmlFilter(std::string_view name);    // HTML and URLs
Filter FindLayoutFilter(std::string_view name);  // human-readable output

// The filter urlize: turns addresses into links.
Value Urlize(Context& context, const Value& input, const Arguments& arguments);

}  // namespace switchyard::jinja
