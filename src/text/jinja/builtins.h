// The filters, tests, functions and methods of templates.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// The filters of `value | filter(arguments)`.

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

// Jinja's tests: the `name` of `value is name(arguments)`.

// Returns the result of the test `name`. Raises if there is no such test.
bool Test(Context& context, const std::string& name, const Value& value,
          const Arguments& arguments);

// The global functions of a template: range, namespace, dict, cycler, joiner, raise_exception,
// strftime_now.

// namespace(…): the only object whose attributes `set` may change. The Context releases its
// contents.
class Namespace : public Object {
 public:
  std::string TypeName() const override { return "Namespace"; }
  std::string Repr() const override { return "<Namespace>"; }
  std::optional<Value> GetAttribute(Context& context, std::string_view name) override;
  void Release() override { attributes_ = Dict(); }

  void SetAttribute(Context& context, Value name, Value value);

 private:
  Dict attributes_;
};

// The global `name`; nullopt if there is none.
std::optional<Value> FindGlobal(std::string_view name);

// Methods of strings, lists and dicts.

// The method `name` bound to `self`; nullopt if its type has none. For a method that mutates its
// object, returns an undefined value whose message is that of Jinja's sandbox.
std::optional<Value> FindMethod(Context& context, const Value& self, std::string_view name);

// A method of a built-in type.
using Method = Value (*)(Context& context, const Value& self, const Arguments& arguments);

Method FindStringMethod(std::string_view name);  // null if there is none

}  // namespace switchyard::jinja
