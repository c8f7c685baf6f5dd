// Jinja's tests: the `name` of `value is name(arguments)`.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Returns the result of the test `name`. Raises if there is no such test.
bool Test(Context& context, const std::string& name, const Value& value,
          const Arguments& arguments);

}  // namespace switchyard::jinja
