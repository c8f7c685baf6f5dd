// The conjunction of schemas: entries of allOf, and keywords in the same schema as $ref, anyOf or
// oneOf.
#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

const std::set<std::string_view> kLargest = {"minimum",  "exclusiveMinimum", "minLength",
                                             "minItems", "minProperties",    "uniqueItems"};
const std::set<std::string_view> kSmallest = {"maximum", "exclusiveMaximum", "maxLength",
                                              "maxItems", "maxProperties"};
// Keywords that apply to properties that `properties` of the same schema does not list.
constexpr std::array<const char*, 4> kOfOtherProperties = {
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"};

SchemaJson AsList(const SchemaJson& value) {
  return value.is_array() ? value : SchemaJson::array({value});
}

SchemaJson CommonTypes(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  SchemaJson common = SchemaJson::array();
  const auto has = [](const SchemaJson& list, const SchemaJson& type) {
    return std::ranges::find(list, type) != list.end();
  };
  const SchemaJson mine = AsList(a), others = AsList(b);
  for (const SchemaJson& type : mine) {
    if (has(others, type)) {
      common.push_back(type);
    } else if ((type == "integer" && has(others, "number")) ||
               (type == "number" && has(others, "integer") && !has(mine, "integer"))) {
      common.push_back("integer");
    }
  }
  if (common.empty()) throw SchemaError(path, "type: the combined schemas have no common type");
  return common;
}

SchemaJson CommonValues(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  SchemaJson common = SchemaJson::array();
  const SchemaJson others = AsList(b);
  for (const SchemaJson& value : AsList(a))
    if (std::ranges::find(others, value) != others.end()) common.push_back(value);
  if (common.empty()) throw SchemaError(path, "enum: the combined schemas have no common value");
  return common;
}

SchemaJson Both(const SchemaJson& a, const SchemaJson& b) {
  return {{"allOf", SchemaJson::array({a, b})}};
}

SchemaJson MergedProperties(SchemaJson a, const SchemaJson& b) {
  for (const auto& [name, schema] : b.items()) {
    const auto found = a.find(name);
    if (found == a.end()) {
      a[name] = schema;
    } else if (*found != schema) {
      *found = Both(*found, schema);
    }
  }
  return a;
}

SchemaJson Union(SchemaJson a, const SchemaJson& b) {
  for (const SchemaJson& name : b)
    if (std::ranges::find(a, name) == a.end()) a.push_back(name);
  return a;
}

// Throws if a keyword of kOfOtherProperties in `closed` applies to a property that only `other`
// lists. The merged schema lists this property, so the keyword would no longer apply to it.
void CheckOtherProperties(const SchemaJson& closed, const SchemaJson& other,
                          const std::string& path) {
  if (!other.contains("properties") || !other["properties"].is_object()) return;
  for (const char* keyword : kOfOtherProperties) {
    if (!closed.contains(keyword)) continue;
    for (const auto& [name, schema] : other["properties"].items()) {
      const bool listed = closed.contains("properties") && closed["properties"].contains(name);
      if (!listed && closed[keyword] != true)
        throw SchemaError(path,
                          "{} is not supported together with a property that only another of the "
                          "combined schemas lists: {}",
                          keyword, name);
    }
  }
}

// As CheckOtherProperties, for items. `items` of `closed` applies to the elements after the
// prefixItems of `closed`. In the merged schema it would apply only to those after the longer
// prefixItems.
void CheckOtherItems(const SchemaJson& closed, const SchemaJson& other, const std::string& path) {
  const auto prefix = [](const SchemaJson& schema) {
    return schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
  };
  for (const char* keyword : {"items", "unevaluatedItems"}) {
    if (closed.contains(keyword) && closed[keyword] != true && prefix(other) > prefix(closed))
      throw SchemaError(
          path, "{} is not supported if another of the combined schemas has more prefixItems",
          keyword);
  }
}

void MergeKeyword(SchemaJson& into, const std::string& keyword, const SchemaJson& value,
                  const std::string& path) {
  SchemaJson& mine = into[keyword];
  if (mine == value) return;
  if (keyword == "type") {
    mine = CommonTypes(mine, value, path);
  } else if (keyword == "enum") {
    mine = CommonValues(mine, value, path);
  } else if (keyword == "properties" && mine.is_object() && value.is_object()) {
    mine = MergedProperties(mine, value);
  } else if (keyword == "required" && mine.is_array() && value.is_array()) {
    mine = Union(mine, value);
  } else if (keyword == "items") {
    mine = Both(mine, value);
  } else if (kLargest.contains(keyword)) {
    mine = std::max(mine, value);
  } else if (kSmallest.contains(keyword)) {
    mine = std::min(mine, value);
  } else {
    throw SchemaError(path, "{} is not supported in two schemas that are combined", keyword);
  }
}

}  // namespace

SchemaJson MergeSchemas(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  CheckOtherProperties(a, b, path);
  CheckOtherProperties(b, a, path);
  CheckOtherItems(a, b, path);
  CheckOtherItems(b, a, path);
  SchemaJson merged = a;
  for (const auto& [keyword, value] : b.items()) {
    if (IsAnnotation(keyword)) continue;
    if (merged.contains(keyword)) {
      MergeKeyword(merged, keyword, value, path);
    } else {
      merged[keyword] = value;
    }
  }
  return merged;
}

}  // namespace switchyard
