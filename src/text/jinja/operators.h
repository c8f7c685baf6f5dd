// Python's operators on values. Invalid operands raise Python's message.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// If `value` is undefined, raises its message.
void RequireDefined(const Value& value);

Value Apply(Context& context, BinaryOp op, const Value& a, const Value& b);
Value Negate(const Value& a);
Value Affirm(const Value& a);  // unary plus

// Values nest at most kMaxNesting deep, so the recursion is bounded.
bool Equal(Context& context, const Value& a, const Value& b);

// Compare and Less raise an error for values that Python cannot order.
bool Compare(Context& context, CompareOp op, const Value& a, const Value& b);
bool Less(Context& context, const Value& a, const Value& b);

bool Contains(Context& context, const Value& container, const Value& item);

// obj.name and obj[key]. As in Jinja, each falls back to the other form. A missing member gives an
// undefined value. Raise for undefined objects, and for methods that the sandbox forbids.
Value GetAttribute(Context& context, const Value& object, const std::string& name);
Value GetItem(Context& context, const Value& object, const Value& key);

// Python's object[start:stop:step]. A bound that is none counts as omitted.
Value Slice(Context& context, const Value& object, const Value& start, const Value& stop,
            const Value& step);

// Calls `callee`; raises if it is not callable.
Value Call(Context& context, const Value& callee, const Arguments& arguments);

// The elements of an iterable: characters of a string, keys of a dict. Raises for other values.
ListPtr Iterate(Context& context, const Value& value);

// Python's len(); nullopt if the value has no length.
std::optional<size_t> Length(Context& context, const Value& value);

}  // namespace switchyard::jinja
