// Methods of strings, lists and dicts.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// The method `name` bound to `self`; nullopt if its type has none. For a method that mutates its
// object, returns an undefined value whose message is that of Jinja's sandbox.
std::optional<Value> FindMethod(Context& context, const Value& self, std::string_view name);

// A method of a built-in type.
using Method = Value (*)(Context& context, const Value& self, const Arguments& arguments);

Method FindStringMethod(std::string_view name);  // null if there is none

}  // namespace switchyard::jinja
