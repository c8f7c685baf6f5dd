#include <algorithm>
#include <optional>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace switchyard::jinja {
namespace {

// A path of `attribute="function.name"` or `attribute=0`: the keys to look up, in order.
class AttributePath {
 public:
  // If `attribute` is null or none, the path is empty.
  AttributePath(Context& context, const Value* attribute) {
    if (!attribute || attribute->IsNone()) return;
    if (!attribute->IsString()) {
      keys_.push_back(*attribute);
      return;
    }
    for (Text& part : Split(context, attribute->text(), Text(".", true), -1, false)) {
      const std::string& name = part.str();
      bool number = !name.empty() && name.size() < 9 &&
                    name.find_first_not_of("0123456789") == std::string::npos;
      keys_.push_back(number ? Value::Integer(std::stoi(name)) : context.Make(std::move(part)));
    }
  }

  // `otherwise` (may be null) replaces undefined values on the path.
  Value Get(Context& context, Value value, const Value* otherwise = nullptr) const {
    for (const Value& key : keys_) {
      value = GetItem(context, value, key);
      if (otherwise && !otherwise->IsNone() && value.IsUndefined()) value = *otherwise;
    }
    return value;
  }

 private:
  std::vector<Value> keys_;
};

Value Generator(Context& context, std::vector<Value> items, std::string_view name) {
  return context.MakeList(std::move(items), List::Kind::kGenerator,
                          fmt::format("<generator object {}>", name));
}

Value LowerIfString(Context& context, const Value& value) {
  return value.IsString() ? context.Make(Lower(context, value.text())) : value;
}

const Value* FindNamed(const Arguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

// Returns `arguments` without the first `count` positional ones.
Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest{
      {arguments.positional.begin() + static_cast<ptrdiff_t>(count), arguments.positional.end()},
      arguments.named};
  return rest;
}

// map, select and similar filters test the truth of a value before they iterate: a false value
// (none, false, 0) gives an empty result, not an error.
ListPtr IterateIfTrue(Context& context, const Value& value) {
  return Truth(value) ? Iterate(context, value) : context.MakeList({}).list_ptr();
}

Value Map(Context& context, const Value& input, const Arguments& arguments) {
  std::vector<Value> items;
  ListPtr list = IterateIfTrue(context, input);
  const Value* attribute = FindNamed(arguments, "attribute");
  if (list->items.empty()) return Generator(context, {}, "sync_do_map");
  if (arguments.positional.empty() && attribute) {
    Bound bound("map", arguments, {"attribute", "default"});
    AttributePath path(context, attribute);
    for (const Value& item : list->items) items.push_back(path.Get(context, item, bound[1]));
  } else {
    if (arguments.positional.empty()) Fail("map requires a filter argument");
    std::string name = Str(context, arguments.positional[0]).str();
    Arguments rest = Without(arguments, 1);
    for (const Value& item : list->items) items.push_back(ApplyFilter(context, name, item, rest));
  }
  return Generator(context, std::move(items), "sync_do_map");
}

// The filters select, reject, selectattr and rejectattr.
template <bool by_attribute, bool wanted>
Value Select(Context& context, const Value& input, const Arguments& arguments) {
  constexpr size_t kOffset = by_attribute ? 1 : 0;
  ListPtr list = IterateIfTrue(context, input);
  std::vector<Value> items;
  if (list->items.empty()) return Generator(context, {}, "select_or_reject");
  if (arguments.positional.size() < kOffset) Fail("Missing parameter for attribute name");
  AttributePath path(context, by_attribute ? &arguments.positional[0] : nullptr);
  bool has_test = arguments.positional.size() > kOffset;
  std::string test = has_test ? Str(context, arguments.positional[kOffset]).str() : "";
  Arguments rest = Without(arguments, has_test ? kOffset + 1 : kOffset);
  for (const Value& item : list->items) {
    context.Step();
    Value subject = path.Get(context, item);
    bool holds = has_test ? Test(context, test, subject, rest) : Truth(subject);
    if (holds == wanted) items.push_back(item);
  }
  return Generator(context, std::move(items), "select_or_reject");
}

struct Keyed {
  Value key, item;
};

std::vector<Value> Sorted(Context& context, std::vector<Keyed> rows, bool reverse) {
  std::stable_sort(rows.begin(), rows.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? Less(context, b.key, a.key) : Less(context, a.key, b.key);
  });
  std::vector<Value> items;
  for (Keyed& row : rows) items.push_back(std::move(row.item));
  return items;
}

// `attribute` may list several paths, separated by commas, which are compared in order.
Value Sort(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  bool case_sensitive = bound.TruthOr(1, false);
  std::vector<AttributePath> paths;
  if (bound[2] && bound[2]->IsString()) {
    for (Text& part : Split(context, bound[2]->text(), Text(",", true), -1, false)) {
      Value name = context.Make(std::move(part));
      paths.emplace_back(context, &name);
    }
  } else {
    paths.emplace_back(context, bound[2]);
  }
  std::vector<Keyed> rows;
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      Value key = path.Get(context, item);
      keys.push_back(case_sensitive ? key : LowerIfString(context, key));
    }
    rows.push_back({context.MakeList(std::move(keys)), item});
  }
  return context.MakeList(Sorted(context, std::move(rows), bound.TruthOr(0, false)));
}

Value Unique(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  AttributePath path(context, bound[1]);
  bool case_sensitive = bound.TruthOr(0, false);
  Dict seen;
  std::vector<Value> items;
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    Value key = path.Get(context, item);
    if (!case_sensitive) key = LowerIfString(context, key);
    RequireHashable(context, key);
    if (seen.Find(context, key)) continue;
    context.Allocate(sizeof(Dict::Entry));
    seen.Append(std::move(key), Value());
    items.push_back(item);
  }
  return Generator(context, std::move(items), "do_unique");
}

template <bool maximum>
Value Extreme(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound(maximum ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  AttributePath path(context, bound[1]);
  bool case_sensitive = bound.TruthOr(0, false);
  std::optional<Keyed> best;
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    Value key = path.Get(context, item);
    if (!case_sensitive) key = LowerIfString(context, key);
    bool better =
        !best || Compare(context, maximum ? CompareOp::kGreater : CompareOp::kLess, key, best->key);
    if (better) best = {std::move(key), item};
  }
  if (!best) return Value::MakeUndefined("No aggregated item, sequence was empty.");
  return best->item;
}

Value Sum(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("sum", arguments, {"attribute", "start"});
  AttributePath path(context, bound[0]);
  Value total = bound[1] ? *bound[1] : Value::Integer(0);
  if (total.IsString()) Fail("sum() can't sum strings [use ''.join(seq) instead]");
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    context.Step();
    total = Apply(context, BinaryOp::kAdd, total, path.Get(context, item));
  }
  return total;
}

Value Join(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("join", arguments, {"d", "attribute"});
  AttributePath path(context, bound[1]);
  Text separator = bound[0] ? Str(context, *bound[0]) : Text();
  Text out;
  bool first = true;
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    Text text = Str(context, path.Get(context, item));
    context.Scan(text.size());
    context.Allocate(text.size() + separator.size());
    if (!std::exchange(first, false)) out.Append(separator);
    out.Append(text);
  }
  return context.Make(std::move(out));
}

Value GroupBy(Context& context, const Value& input, const Arguments& arguments) {
  Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  AttributePath path(context, bound[0]);
  bool case_sensitive = bound.TruthOr(2, false);
  std::vector<Keyed> rows;  // (original key, item)
  ListPtr list = Iterate(context, input);
  for (const Value& item : list->items) {
    Value grouper = path.Get(context, item, bound[1]);
    Value key = case_sensitive ? grouper : LowerIfString(context, grouper);
    Value pair = context.MakeList({key, grouper, item}, List::Kind::kTuple);
    rows.push_back({std::move(key), std::move(pair)});
  }
  std::vector<Value> sorted = Sorted(context, std::move(rows), false);
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    const Value& key = sorted[i].list().items[0];
    const Value& grouper = sorted[i].list().items[1];
    std::vector<Value> members;
    for (; i < sorted.size() && Equal(context, sorted[i].list().items[0], key); ++i) {
      members.push_back(sorted[i].list().items[2]);
    }
    if (members.empty())
      members.push_back(sorted[i++].list().items[2]);  // NaN is not equal to itself
    Value group = context.MakeList(std::move(members));
    groups.push_back(context.MakeList({grouper, std::move(group)}, List::Kind::kTuple,
                                      std::string(kGroupLabel)));
  }
  return context.MakeList(std::move(groups));
}

}  // namespace

Filter FindSelectFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"map", Map},
      {"select", Select<false, true>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<true, false>},
      {"sort", Sort},
      {"unique", Unique},
      {"min", Extreme<false>},
      {"max", Extreme<true>},
      {"sum", Sum},
      {"join", Join},
      {"groupby", GroupBy},
  };
  auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace switchyard::jinja
