// Operators of templates: on values, numbers and texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/context.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Python's operators on values. Invalid operands raise Python's message.

// If `value` is undefined, raises its message.
void RequireDefined(const Value& value);

Value Apply(Context& context, BinaryOp op, const Value& a, const Value& b);
Value Negate(const Value& a);
Value UnaryPlus(const Value& a);

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

// Python's arithmetic of int and float.

// Both operands are numbers; bools count as integers. Raises for division by zero and for integers
// beyond 2^120.
Value Compute(BinaryOp op, const Value& a, const Value& b);

// Python's round(): to `digits` decimal places, with ties to even.
double RoundHalfEven(double value, int digits);

// Search, strip, split and replace for string methods and filters. Results keep the runs of the
// text.

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
