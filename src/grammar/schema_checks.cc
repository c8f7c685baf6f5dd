// Checks of rewritten schemas: whether branches of a oneOf are disjoint, and whether a $ref
// recurses without end.
#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

constexpr int kMaxDepth = 12;  // nesting of the properties that are compared

// Resolves $ref and anyOf: returns schemas without these keywords, whose union is `schema`. nullopt
// if there are too many, or if a $ref leads back to itself.
std::optional<std::vector<const SchemaJson*>> Alternatives(const RewrittenSchema& whole,
                                                           const SchemaJson& schema) {
  constexpr size_t kMost = 256;
  std::vector<const SchemaJson*> open = {&schema}, all;
  for (size_t steps = 0; !open.empty(); ++steps) {
    if (steps > kMost) return std::nullopt;
    const SchemaJson& next = *open.back();
    open.pop_back();
    if (next.contains("$ref")) {
      open.push_back(&whole.Resolve(next["$ref"].get<std::string>()));
    } else if (next.contains("anyOf")) {
      for (const SchemaJson& branch : next["anyOf"]) open.push_back(&branch);
    } else {
      all.push_back(&next);
    }
  }
  return all;
}

class Disjointness {
 public:
  explicit Disjointness(const RewrittenSchema& whole) : whole_(whole) {}

  bool Of(const SchemaJson& a, const SchemaJson& b, int depth = 0) const {
    if (depth > kMaxDepth) return false;
    const auto left = Alternatives(whole_, a), right = Alternatives(whole_, b);
    if (!left || !right) return false;
    return std::ranges::all_of(*left, [&](const SchemaJson* x) {
      return std::ranges::all_of(*right,
                                 [&](const SchemaJson* y) { return OfSimple(*x, *y, depth); });
    });
  }

 private:
  // Whether it is certain that no value is valid for both `a` and `b`, which have neither $ref nor
  // anyOf.
  bool OfSimple(const SchemaJson& a, const SchemaJson& b, int depth) const {
    if (a.contains("enum")) {
      return std::ranges::none_of(a["enum"],
                                  [&](const SchemaJson& value) { return MayAccept(b, value); });
    }
    if (b.contains("enum")) return OfSimple(b, a, depth);
    if (!a.contains("type") || !b.contains("type")) return false;  // any value
    const auto of = [](const SchemaJson& schema) {
      return schema["type"] == "integer" ? SchemaJson("number") : schema["type"];
    };
    if (of(a) != of(b)) return true;
    return a["type"] == "object" && (Separates(a, b, depth) || Separates(b, a, depth));
  }

  static bool MayAccept(const SchemaJson& schema, const SchemaJson& value) {
    if (schema.contains("enum"))
      return std::ranges::find(schema["enum"], value) != schema["enum"].end();
    return !schema.contains("type") || HasType(value, schema["type"].get<std::string>());
  }

  // Whether a property that `a` requires makes the schemas disjoint: `b` does not allow it, or its
  // values in `a` and `b` are disjoint.
  bool Separates(const SchemaJson& a, const SchemaJson& b, int depth) const {
    if (!a.contains("required")) return false;
    const SchemaJson none = SchemaJson::object();
    const SchemaJson& others = b.contains("properties") ? b["properties"] : none;
    const bool closed = b.contains("additionalProperties") && b["additionalProperties"] == false &&
                        !b.contains("patternProperties");
    return std::ranges::any_of(a["required"], [&](const SchemaJson& name) {
      const auto& key = name.get_ref<const std::string&>();
      if (!others.contains(key)) return closed;
      return Of(a["properties"][key], others[key], depth + 1);
    });
  }

  const RewrittenSchema& whole_;
};

// The $refs of a schema itself and of its anyOf branches, but not those of properties or items.
void DirectReferences(const SchemaJson& schema, std::vector<std::string>* found) {
  if (schema.contains("$ref")) found->push_back(schema["$ref"].get<std::string>());
  if (schema.contains("anyOf"))
    for (const SchemaJson& branch : schema["anyOf"]) DirectReferences(branch, found);
}

bool LeadsTo(const RewrittenSchema& whole, const SchemaJson& from, const std::string& target,
             std::set<std::string>* seen) {
  std::vector<std::string> references;
  DirectReferences(from, &references);
  return std::ranges::any_of(references, [&](const std::string& reference) {
    return reference == target || (seen->insert(reference).second &&
                                   LeadsTo(whole, whole.Resolve(reference), target, seen));
  });
}

// Whether a finite value is valid for `schema`. `finite`: definitions that are known to have a
// finite value.
bool HasValue(const SchemaJson& schema, const std::set<std::string>& finite) {
  const auto has = [&](const SchemaJson& sub) { return HasValue(sub, finite); };
  if (schema.contains("$ref")) return finite.contains(schema["$ref"].get<std::string>());
  if (schema.contains("anyOf")) return std::ranges::any_of(schema["anyOf"], has);
  if (!schema.contains("type")) return true;
  if (schema["type"] == "object" && schema.contains("required")) {
    return std::ranges::all_of(schema["required"], [&](const SchemaJson& name) {
      return has(schema["properties"][name.get<std::string>()]);
    });
  }
  if (schema["type"] != "array" || !schema.contains("minItems")) return true;
  const auto least = schema["minItems"].get<int64_t>();
  const SchemaJson none = SchemaJson::array();
  const SchemaJson& prefix = schema.contains("prefixItems") ? schema["prefixItems"] : none;
  for (int64_t i = 0; i < std::min<int64_t>(least, std::ssize(prefix)); ++i)
    if (!has(prefix[i])) return false;
  return least <= std::ssize(prefix) || has(schema["items"]);
}

}  // namespace

bool AreDisjoint(const RewrittenSchema& whole, const SchemaJson& a, const SchemaJson& b) {
  return Disjointness(whole).Of(a, b);
}

void CheckRecursion(const RewrittenSchema& whole) {
  std::vector<std::string> references = {"#"};
  for (const auto& [name, definition] : whole.definitions) references.push_back("#/$defs/" + name);
  for (const std::string& reference : references) {
    std::set<std::string> seen;
    if (LeadsTo(whole, whole.Resolve(reference), reference, &seen))
      throw SchemaError("#", "$ref leads back to itself without properties or items in between");
  }
  std::set<std::string> finite;
  for (size_t before = ~size_t{0}; before != finite.size();) {
    before = finite.size();
    for (const std::string& reference : references)
      if (HasValue(whole.Resolve(reference), finite)) finite.insert(reference);
  }
  if (!finite.contains("#"))
    throw SchemaError("#", "$ref: every valid value would contain another one, without end");
}

}  // namespace switchyard
