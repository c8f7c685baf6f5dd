// Methods of strings, lists and dicts.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// The method `name` bound to `self`; nullopt if its type has none. Methods that change their object
// give an undefined value that says the sandbox forbids them.
std::optional<Value> FindMethod(Context& context, const Value& self, std::string_view name);

// One method of a built-in type.
using Method = Value (*)(Context& context, const Value& self, const Arguments& arguments);

Method FindStringMethod(std::string_view name);  // null if there is none

}  // namespace switchyard::jinja
