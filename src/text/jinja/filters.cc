#include "text/jinja/filters.h"

namespace switchyard::jinja {
namespace {

Filter FindFilter(std::string_view name) {
  for (auto find : {FindTextFilter, FindSequenceFilter, FindSelectFilter, FindValueFilter,
                    FindHtmlFilter, FindLayoutFilter}) {
    if (Filter filter = find(name)) return filter;
  }
  return nullptr;
}

}  // namespace

bool HasFilter(std::string_view name) { return FindFilter(name) != nullptr; }

Value ApplyFilter(Context& context, const std::string& name, const Value& input,
                  const Arguments& arguments) {
  Filter filter = FindFilter(name);
  if (!filter) Fail("No filter named '{}'.", name);
  context.Step();
  return filter(context, input, arguments);
}

}  // namespace switchyard::jinja
