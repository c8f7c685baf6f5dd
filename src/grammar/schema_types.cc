// Rewrites schemas for values of one type.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "grammar/compiler.h"
#include "grammar/schema_rewriter.h"

namespace switchyard {
namespace {

// Beyond this magnitude XGrammar's expressions for ranges of numbers become long.
constexpr double kLargestBound = 1e15;
// XGrammar writes numbers of a range with at most six decimals, so a narrower range may have none.
constexpr double kNarrowestRange = 1e-5;
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

struct Context {
  const SchemaJson& schema;
  const std::string& path;
  const RewriteSubschema& rewrite;

  bool Has(const char* keyword) const { return schema.contains(keyword); }
  const SchemaJson& operator[](const char* keyword) const { return schema[keyword]; }
  SchemaJson Rewrite(const char* keyword) const {
    return rewrite(schema[keyword], fmt::format("{}/{}", path, keyword));
  }
  template <typename... Args>
  Error Refused(fmt::format_string<Args...> format, Args&&... args) const {
    return SchemaError(path, format, std::forward<Args>(args)...);
  }
  void RefuseAny(std::initializer_list<const char*> keywords) const {
    for (const char* keyword : keywords)
      if (Has(keyword)) throw Refused("{} is not supported", keyword);
  }
  // A count such as minItems; 3.0 is 3.
  int64_t Count(const char* keyword, int64_t otherwise) const {
    if (!Has(keyword)) return otherwise;
    const SchemaJson& value = schema[keyword];
    if (!HasType(value, "integer") || value.get<double>() < 0)
      throw Refused("{} is not an integer of 0 or more", keyword);
    return value.get<double>() > static_cast<double>(kMaxCount) ? kMaxCount : value.get<int64_t>();
  }
};

void SetRange(SchemaJson& out, const char* least_keyword, int64_t least, const char* most_keyword,
              int64_t most, const Context& in) {
  if (least > most) throw in.Refused("{} is larger than {}", least_keyword, most_keyword);
  if (least > 0) out[least_keyword] = least;
  if (most < kMaxCount) out[most_keyword] = most;
}

SchemaJson RewriteString(const Context& in) {
  SchemaJson out = {{"type", "string"}};
  const int64_t least = in.Count("minLength", 0), most = in.Count("maxLength", kMaxCount);
  if (least > most) throw in.Refused("minLength is larger than maxLength");
  for (const char* keyword : {"pattern", "format"})
    if (in.Has(keyword) && !in[keyword].is_string())
      throw in.Refused("{} is not a string", keyword);
  const bool free = !in.Has("format") || IsFormatOfAnyString(in["format"].get<std::string>());
  if (in.Has("pattern")) {
    if (!free) throw in.Refused("pattern together with format is not supported");
    if (least > 0 || most < kMaxCount)
      throw in.Refused("{} together with pattern is not supported",
                       least > 0 ? "minLength" : "maxLength");
    try {
      out["pattern"] = StringPattern(in["pattern"].get<std::string>());
    } catch (const Error& e) {
      throw in.Refused("pattern: {}", e.what());
    }
  } else if (free) {
    SetRange(out, "minLength", least, "maxLength", most, in);
  } else {
    const auto format = in["format"].get<std::string>();
    const int64_t limit = most < kMaxCount ? most : std::numeric_limits<int64_t>::max();
    const std::string pattern = PatternOfFormat(format, least, limit, in.path);
    if (pattern.empty()) {
      out["format"] = format;
    } else {
      out["pattern"] = pattern;
    }
  }
  return out;
}

// A bound of numbers. A bound beyond -1e15 or 1e15 that excludes no value of this range, such as
// the largest integer of a type, is replaced by the end of the range.
double Bound(const Context& in, std::string_view keyword) {
  const SchemaJson& value = in.schema[keyword];
  if (!value.is_number()) throw in.Refused("{} is not a number", keyword);
  const bool lower = keyword.ends_with("inimum");
  const double bound = value.get<double>();
  if (lower ? bound > kLargestBound : bound < -kLargestBound)
    throw in.Refused("{} is {}, want -1e15 to 1e15", keyword, bound);
  return lower ? std::max(bound, -kLargestBound) : std::min(bound, kLargestBound);
}

// Rewrites all bounds as inclusive integers.
SchemaJson RewriteInteger(const Context& in) {
  double least = -HUGE_VAL, most = HUGE_VAL;
  if (in.Has("minimum")) least = std::ceil(Bound(in, "minimum"));
  if (in.Has("exclusiveMinimum"))
    least = std::max(least, std::floor(Bound(in, "exclusiveMinimum")) + 1);
  if (in.Has("maximum")) most = std::floor(Bound(in, "maximum"));
  if (in.Has("exclusiveMaximum"))
    most = std::min(most, std::ceil(Bound(in, "exclusiveMaximum")) - 1);
  if (least > most) throw in.Refused("minimum and maximum allow no integer");
  SchemaJson out = {{"type", "integer"}};
  if (std::isfinite(least)) out["minimum"] = static_cast<int64_t>(least);
  if (std::isfinite(most)) out["maximum"] = static_cast<int64_t>(most);
  if (in.Has("multipleOf")) {
    if (!in["multipleOf"].is_number() || in["multipleOf"].get<double>() <= 0)
      throw in.Refused("multipleOf is not a number above 0");
    const double step = in["multipleOf"].get<double>();
    if (step != std::floor(step))
      throw in.Refused("multipleOf is {}: only integers are supported", step);
    if (step != 1) out["multipleOf"] = static_cast<int64_t>(std::min(step, kLargestBound));
  }
  return out;
}

SchemaJson RewriteNumber(const Context& in) {
  if (in.Has("multipleOf")) {
    if (in["multipleOf"].is_number() && in["multipleOf"] == 1) return RewriteInteger(in);
    throw in.Refused("multipleOf is only supported for type integer");
  }
  SchemaJson out = {{"type", "number"}};
  double least = -HUGE_VAL, most = HUGE_VAL;
  for (const char* keyword : {"minimum", "exclusiveMinimum"})
    if (in.Has(keyword)) {
      const double bound = Bound(in, keyword);
      least = std::max(least, bound);
      out[keyword] = in[keyword] == bound ? in[keyword] : SchemaJson(bound);
    }
  for (const char* keyword : {"maximum", "exclusiveMaximum"})
    if (in.Has(keyword)) {
      const double bound = Bound(in, keyword);
      most = std::min(most, bound);
      out[keyword] = in[keyword] == bound ? in[keyword] : SchemaJson(bound);
    }
  if (least == most && !in.Has("exclusiveMinimum") && !in.Has("exclusiveMaximum"))
    return {{"enum", SchemaJson::array({in["minimum"]})}};
  if (most - least < kNarrowestRange)
    throw in.Refused("minimum and maximum: the range is empty or narrower than 0.00001");
  return out;
}

SchemaJson RewriteArray(const Context& in) {
  in.RefuseAny({"contains", "minContains", "maxContains", "additionalItems"});
  SchemaJson out = {{"type", "array"}};
  const int64_t least = in.Count("minItems", 0), most = in.Count("maxItems", kMaxCount);
  if (in.Has("uniqueItems") && in["uniqueItems"] != false && most > 1)
    throw in.Refused("uniqueItems is not supported");
  if (in.Has("prefixItems")) {
    if (!in["prefixItems"].is_array()) throw in.Refused("prefixItems is not a list");
    SchemaJson prefix = SchemaJson::array();
    for (const SchemaJson& item : in["prefixItems"]) {
      if (std::ssize(prefix) == most) break;
      prefix.push_back(in.rewrite(item, fmt::format("{}/prefixItems/{}", in.path, prefix.size())));
    }
    if (!prefix.empty()) out["prefixItems"] = std::move(prefix);
  }
  const char* rest = in.Has("items") ? "items" : "unevaluatedItems";
  if (in.Has(rest)) {
    if (in[rest].is_array())
      throw in.Refused("items is a list: want one schema; prefixItems lists schemas by position");
    out["items"] = in[rest] == false ? SchemaJson(false) : in.Rewrite(rest);
  } else if (!out.contains("prefixItems")) {
    out["items"] = SchemaJson::object();
  }
  const bool open = out.contains("items") && out["items"] != false;
  const auto fixed =
      static_cast<int64_t>(out.contains("prefixItems") ? out["prefixItems"].size() : 0);
  if (!open && least > fixed)
    throw in.Refused("minItems is {}, and there are at most {} items", least, fixed);
  SetRange(out, "minItems", least, "maxItems", most, in);
  return out;
}

// `required` without duplicates.
std::vector<std::string> Required(const Context& in) {
  std::vector<std::string> names;
  if (!in.Has("required")) return names;
  if (!in["required"].is_array()) throw in.Refused("required is not a list");
  for (const SchemaJson& name : in["required"]) {
    if (!name.is_string()) throw in.Refused("required has an entry that is not a string");
    if (std::ranges::find(names, name.get<std::string>()) == names.end())
      names.push_back(name.get<std::string>());
  }
  return names;
}

// The rewritten properties. A property whose schema is false is left out.
SchemaJson Properties(const Context& in) {
  SchemaJson out = SchemaJson::object();
  if (!in.Has("properties")) return out;
  if (!in["properties"].is_object()) throw in.Refused("properties is not an object");
  for (const auto& [name, schema] : in["properties"].items()) {
    if (schema == false) {
      if (in.Has("additionalProperties") && in["additionalProperties"] != false)
        throw in.Refused(
            "properties: the schema false is not supported together with "
            "additionalProperties, here {}",
            name);
      continue;
    }
    out[name] = in.rewrite(schema, fmt::format("{}/properties/{}", in.path, name));
  }
  return out;
}

// An object whose property names are given by patternProperties or propertyNames. `properties` and
// `required` must be absent or empty.
SchemaJson RewriteNamedByPattern(const Context& in) {
  SchemaJson out = {{"type", "object"}};
  const bool patterns = in.Has("patternProperties");
  const char* keyword = patterns ? "patternProperties" : "propertyNames";
  if (in.Has("properties") && in["properties"] != SchemaJson::object())
    throw in.Refused("{} together with properties is not supported", keyword);
  if (in.Has("required") && in["required"] != SchemaJson::array())
    throw in.Refused("{} together with required is not supported", keyword);
  if (!patterns) {
    SchemaJson names = in["propertyNames"];
    if (names.is_object() && !names.contains("type") && !names.contains("$ref"))
      names["type"] = "string";
    names = in.rewrite(names, in.path + "/propertyNames");
    const bool strings =
        names.contains("enum")
            ? std::ranges::all_of(names["enum"], [](const auto& name) { return name.is_string(); })
            : names.contains("type") && names["type"] == "string";
    if (!strings) throw in.Refused("propertyNames is not a schema of strings");
    out["propertyNames"] = std::move(names);
    for (const char* other : {"additionalProperties", "unevaluatedProperties"}) {
      if (!in.Has(other)) continue;
      if (in[other] == false)
        throw in.Refused("propertyNames together with {} false allows no property", other);
      out["additionalProperties"] = in.Rewrite(other);
      break;
    }
    return out;
  }
  if (in.Has("propertyNames"))
    throw in.Refused("propertyNames together with patternProperties is not supported");
  if (!in["patternProperties"].is_object()) throw in.Refused("patternProperties is not an object");
  if (in.Has("additionalProperties") && in["additionalProperties"] != false)
    throw in.Refused(
        "additionalProperties together with patternProperties is only supported if false");
  SchemaJson by_pattern = SchemaJson::object();
  for (const auto& [pattern, schema] : in["patternProperties"].items()) {
    SchemaJson value = in.rewrite(schema, fmt::format("{}/patternProperties/{}", in.path, pattern));
    if (!by_pattern.empty() && *by_pattern.begin() != value)
      throw in.Refused("patternProperties with different schemas is not supported");
    try {
      by_pattern[StringPattern(pattern)] = std::move(value);
    } catch (const Error& e) {
      throw in.Refused("patternProperties: {}", e.what());
    }
  }
  out["patternProperties"] = std::move(by_pattern);
  out["additionalProperties"] = false;
  return out;
}

// The schema of properties that `properties` does not list; nullopt if they are not allowed.
std::optional<SchemaJson> OtherProperties(const Context& in, bool has_properties) {
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (!in.Has(keyword)) continue;
    if (in[keyword] == false) return std::nullopt;
    return in.Rewrite(keyword);
  }
  if (has_properties) return std::nullopt;
  return SchemaJson::object();
}

SchemaJson RewriteObject(const Context& in) {
  in.RefuseAny({"dependentRequired", "dependentSchemas", "dependencies"});
  int64_t least = in.Count("minProperties", 0);
  int64_t most = in.Count("maxProperties", kMaxCount);
  SchemaJson out;
  bool open = true;
  const bool patterns =
      in.Has("patternProperties") && in["patternProperties"] != SchemaJson::object();
  if (patterns || (in.Has("propertyNames") && in["propertyNames"] != true)) {
    out = RewriteNamedByPattern(in);
  } else {
    out = {{"type", "object"}};
    SchemaJson properties = Properties(in);
    const std::vector<std::string> required = Required(in);
    std::optional<SchemaJson> others = OtherProperties(in, in.Has("properties"));
    for (const std::string& name : required) {
      if (properties.contains(name)) continue;
      if (!others) throw in.Refused("required has {}, which properties does not list", name);
      properties[name] = *others;
    }
    open = others.has_value();
    if (!open && least > std::ssize(properties))
      throw in.Refused("minProperties is {}, and there are at most {} properties", least,
                       properties.size());
    if (std::ssize(required) > most)
      throw in.Refused("maxProperties is smaller than the number of required properties");
    least = least <= std::ssize(required) ? 0 : least;
    if (!properties.empty()) out["properties"] = std::move(properties);
    if (!required.empty()) out["required"] = required;
    const bool stated = in.Has("additionalProperties") || in.Has("unevaluatedProperties");
    if (others) {
      out["additionalProperties"] = *std::move(others);
    } else if (stated) {
      out["additionalProperties"] = false;
    } else if (!out.contains("properties")) {
      // Limits the number of properties instead of setting additionalProperties to false: the
      // original schema allows further properties, so AreDisjoint must regard the object as open.
      most = 0;
    }
  }
  // An output may have the same name twice, which a grammar cannot prevent. JSON counts such a
  // property once, so an output could have too few properties.
  if (open && least > 1)
    throw in.Refused("minProperties above 1 is only supported if all properties are listed");
  SetRange(out, "minProperties", least, "maxProperties", most, in);
  return out;
}

}  // namespace

SchemaJson RewriteTyped(const SchemaJson& schema, const std::string& type, const std::string& path,
                        const RewriteSubschema& rewrite) {
  const Context in{schema, path, rewrite};
  if (type == "string") return RewriteString(in);
  if (type == "integer") return RewriteInteger(in);
  if (type == "number") return RewriteNumber(in);
  if (type == "array") return RewriteArray(in);
  if (type == "object") return RewriteObject(in);
  return {{"type", type}};
}

}  // namespace switchyard
