#include <algorithm>
#include <random>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

Value LengthFilter(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("length", arguments, {});
  auto length = Length(context, input);
  if (!length) Fail("object of type '{}' has no len()", TypeName(input));
  return Value::Integer(static_cast<Int>(*length));
}

Value First(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("first", arguments, {});
  ListPtr list = Iterate(context, input);
  if (list->items.empty()) return Value::MakeUndefined("No first item, sequence was empty.");
  return list->items.front();
}

Value Last(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("last", arguments, {});
  if (input.IsList() && input.list().kind == List::Kind::kGenerator) {
    Fail("'generator' object is not reversible");
  }
  ListPtr list = Iterate(context, input);
  if (list->items.empty()) return Value::MakeUndefined("No last item, sequence was empty.");
  return list->items.back();
}

Value Random(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("random", arguments, {});
  const auto length = Length(context, input);
  if (!length) Fail("object of type '{}' has no len()", TypeName(input));
  if (*length == 0) return Value::MakeUndefined("No random item, sequence was empty.");
  thread_local std::mt19937_64 generator{std::random_device{}()};
  const Int at =
      std::uniform_int_distribution<int64_t>(0, static_cast<int64_t>(*length) - 1)(generator);
  return GetItem(context, input, Value::Integer(at));
}

Value ListFilter(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("list", arguments, {});
  return context.MakeList(Iterate(context, input)->items);
}

Value Reverse(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("reverse", arguments, {});
  if (input.IsString()) return Slice(context, input, Value(), Value(), Value::Integer(-1));
  std::vector<Value> items = Iterate(context, input)->items;
  std::reverse(items.begin(), items.end());
  return context.MakeList(std::move(items), List::Kind::kGenerator,
                          "<list_reverseiterator object>");
}

Value Batch(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  ListPtr list = Iterate(context, input);
  Int count = bound.IntegerOr(0, 1);
  bool fill = bound[1] && !bound[1]->IsNone();
  std::vector<Value> rows;
  std::vector<Value> row;
  for (const Value& item : list->items) {
    if (static_cast<Int>(row.size()) == count)
      rows.push_back(context.MakeList(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    while (fill && static_cast<Int>(row.size()) < count) {
      context.Allocate(sizeof(Value));
      row.push_back(*bound[1]);
    }
    rows.push_back(context.MakeList(std::move(row)));
  }
  return context.MakeList(std::move(rows), List::Kind::kGenerator, "<generator object do_batch>");
}

Value SliceFilter(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  ListPtr list = Iterate(context, input);
  Int slices = bound.IntegerOr(0, 1);
  if (slices == 0) Fail("integer division or modulo by zero");
  auto length = static_cast<Int>(list->items.size());
  Int per_slice = slices < 0 ? 0 : length / slices;
  Int longer = slices < 0 ? 0 : length % slices;
  std::vector<Value> rows;
  Int at = 0;
  for (Int i = 0; i < slices; ++i) {
    Int end = at + per_slice + (i < longer ? 1 : 0);
    std::vector<Value> row(list->items.begin() + static_cast<ptrdiff_t>(at),
                           list->items.begin() + static_cast<ptrdiff_t>(end));
    bool fill = bound[1] && !bound[1]->IsNone() && i >= longer;
    if (fill) row.push_back(*bound[1]);
    rows.push_back(context.MakeList(std::move(row)));
    at = end;
  }
  return context.MakeList(std::move(rows), List::Kind::kGenerator, "<generator object do_slice>");
}

Value Items(Context& context, const Value& input, const Arguments& arguments) {
  const Bound none("items", arguments, {});
  if (!input.IsDict() && !input.IsUndefined()) Fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  if (input.IsDict()) {
    for (const auto& [key, value] : input.dict().entries()) {
      items.push_back(context.MakeList({key, value}, List::Kind::kTuple));
    }
  }
  return context.MakeList(std::move(items), List::Kind::kGenerator, "<generator object do_items>");
}

Value DictSort(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  std::string by = bound.TextOr(1, "key").str();
  if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
  if (!input.IsDict()) Fail("'{}' object has no attribute 'items'", TypeName(input));
  bool case_sensitive = bound.TruthOr(0, false);
  bool reverse = bound.TruthOr(2, false);
  struct Row {
    Value key, pair;
  };
  std::vector<Row> rows;
  for (const auto& [key, value] : input.dict().entries()) {
    Value sort_key = by == "key" ? key : value;
    if (!case_sensitive && sort_key.IsString())
      sort_key = context.Make(Lower(context, sort_key.text()));
    rows.push_back({sort_key, context.MakeList({key, value}, List::Kind::kTuple)});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return reverse ? Less(context, b.key, a.key) : Less(context, a.key, b.key);
  });
  std::vector<Value> items;
  for (Row& row : rows) items.push_back(std::move(row.pair));
  return context.MakeList(std::move(items));
}

}  // namespace

Filter FindSequenceFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"length", LengthFilter}, {"count", LengthFilter}, {"first", First},   {"last", Last},
      {"list", ListFilter},     {"reverse", Reverse},    {"batch", Batch},   {"slice", SliceFilter},
      {"items", Items},         {"dictsort", DictSort},  {"random", Random},
  };
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
