// Keywords of JSON Schema by the types to which they apply.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

// Keywords that do not affect which values are valid (JSON Schema 2020-12, OpenAPI 3.1).
const std::set<std::string_view> kAnnotations = {
    "title",           "description",      "default",       "examples",     "example",
    "deprecated",      "readOnly",         "writeOnly",     "$comment",     "$schema",
    "$anchor",         "$vocabulary",      "$defs",         "definitions",  "discriminator",
    "contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml"};

// For each type, the keywords that apply to it. Those of number also apply to integer.
const std::map<std::string_view, std::set<std::string_view>> kOfType = {
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"array",
     {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
      "maxContains", "unevaluatedItems", "additionalItems"}},
    {"object",
     {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
      "minProperties", "maxProperties", "unevaluatedProperties", "dependentRequired",
      "dependentSchemas", "dependencies"}}};

const std::set<std::string_view> kOfAllTypes = {"type",  "enum",  "const", "$ref",
                                                "anyOf", "oneOf", "allOf"};

const std::set<std::string_view> kNeverSupported = {"not",           "if",
                                                    "then",          "else",
                                                    "$dynamicRef",   "$dynamicAnchor",
                                                    "$recursiveRef", "$recursiveAnchor"};

constexpr std::array<const char*, 7> kTypes = {"null",   "boolean", "object", "array",
                                               "number", "string",  "integer"};

bool IsKnown(std::string_view keyword) {
  return kOfAllTypes.contains(keyword) ||
         std::ranges::any_of(kOfType, [&](const auto& of) { return of.second.contains(keyword); });
}

}  // namespace

bool IsAnnotation(const std::string& keyword) {
  // `strict` is a field of OpenAI's tools; some clients also put it into the schema.
  return kAnnotations.contains(keyword) || keyword == "strict" || keyword.starts_with("x-");
}

void CheckKeywords(const SchemaJson& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (IsAnnotation(keyword) || IsKnown(keyword)) continue;
    if (kNeverSupported.contains(keyword)) throw SchemaError(path, "{} is not supported", keyword);
    if (keyword == "nullable") {
      if (value == false) continue;
      throw SchemaError(path, "nullable is not supported: add \"null\" to type");
    }
    if (keyword == "$id")
      throw SchemaError(path, "$id is only supported at the root of the schema");
    throw SchemaError(path, "{} is not a known keyword of JSON Schema", keyword);
  }
}

bool HasType(const SchemaJson& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
}

std::vector<std::string> TypesOf(const SchemaJson& schema, const std::string& path) {
  std::vector<std::string> types;
  if (!schema.contains("type")) {
    for (const auto& of : kOfType) {
      if (std::ranges::any_of(of.second, [&](std::string_view keyword) {
            return schema.contains(std::string(keyword));
          }))
        types.emplace_back(of.first);
    }
    if (types.size() > 1)
      throw SchemaError(path, "type is missing, and the schema has keywords for {}",
                        Joined(types, " and for "));
    return types;
  }
  const SchemaJson& type = schema["type"];
  for (const SchemaJson& one : type.is_array() ? type : SchemaJson::array({type})) {
    if (!one.is_string() || std::ranges::find(kTypes, one.get<std::string>()) == kTypes.end())
      throw SchemaError(path, "type is not one of {}, or a list of them", Joined(kTypes, ", "));
    const auto name = one.get<std::string>();
    if (std::ranges::find(types, name) == types.end()) types.push_back(name);
  }
  if (types.empty()) throw SchemaError(path, "type is an empty list");
  if (std::ranges::find(types, "number") != types.end()) std::erase(types, "integer");
  return types;
}

}  // namespace switchyard
