#include "grammar/schema_rewriter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <string_view>

namespace switchyard {
namespace {

constexpr int kMaxNodes = 10'000, kMaxDepth = 64;

// Counts nested calls, and throws beyond kMaxDepth.
class Deeper {
 public:
  Deeper(int& depth, const std::string& path) : depth_(depth) {
    if (++depth_ > kMaxDepth) {
      --depth_;
      throw SchemaError(path, "the schema is nested deeper than {} levels", kMaxDepth);
    }
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

// Decodes "~1", "~0" and percent escapes of one part of a JSON pointer in a URI.
std::string DecodePart(std::string_view part) {
  std::string decoded;
  for (size_t i = 0; i < part.size(); ++i) {
    unsigned byte = 0;
    if (part[i] == '%' && i + 2 < part.size() &&
        std::from_chars(part.data() + i + 1, part.data() + i + 3, byte, 16).ptr ==
            part.data() + i + 3) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += part[i];
    }
  }
  std::string out;
  for (size_t i = 0; i < decoded.size(); ++i) {
    const bool escape = decoded[i] == '~' && i + 1 < decoded.size() &&
                        (decoded[i + 1] == '0' || decoded[i + 1] == '1');
    out += escape ? (decoded[++i] == '0' ? '~' : '/') : decoded[i];
  }
  return out;
}

// The member or element that a part of a JSON pointer selects; null: there is none.
const SchemaJson* Select(const SchemaJson& from, const std::string& part) {
  if (from.is_object()) {
    const auto found = from.find(part);
    return found == from.end() ? nullptr : &*found;
  }
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  if (!from.is_array() || error != std::errc() || end != part.data() + part.size() ||
      index >= from.size())
    return nullptr;
  return &from[index];
}

// Returns the schema without the given keywords and without annotations.
SchemaJson Without(const SchemaJson& schema, std::initializer_list<const char*> keywords) {
  SchemaJson rest = SchemaJson::object();
  for (const auto& [key, value] : schema.items()) {
    if (std::ranges::find(keywords, std::string_view(key)) == keywords.end() && !IsAnnotation(key))
      rest[key] = value;
  }
  return rest;
}

const SchemaJson& ListOf(const SchemaJson& schema, const char* keyword, const std::string& path) {
  const SchemaJson& list = schema[keyword];
  if (!list.is_array() || list.empty())
    throw SchemaError(path, "{} is not a list of at least one entry", keyword);
  return list;
}

// The values that both `enum` and `const` allow.
SchemaJson ValuesOf(const SchemaJson& schema, const std::string& path) {
  SchemaJson values = SchemaJson::array();
  if (schema.contains("enum")) values = ListOf(schema, "enum", path);
  if (!schema.contains("const")) return values;
  const SchemaJson& value = schema["const"];
  const bool listed = !schema.contains("enum") || std::ranges::find(values, value) != values.end();
  return listed ? SchemaJson::array({value}) : SchemaJson::array();
}

}  // namespace

const SchemaJson& RewrittenSchema::Resolve(const std::string& reference) const {
  constexpr std::string_view kDefinition = "#/$defs/";
  if (reference == "#") return root;
  return definitions.at(reference.substr(kDefinition.size()));
}

SchemaJson SchemaRewriter::Run() {
  if (root_.is_object() && root_.contains("$id")) {
    SchemaJson plain = root_;
    plain.erase("$id");
    return SchemaRewriter(plain).Run();
  }
  out_.root = Rewrite(root_, "#");
  while (!queue_.empty()) {
    const std::string reference = queue_.back();
    queue_.pop_back();
    const SchemaJson definition = Rewrite(Resolve(reference, reference), reference);
    out_.definitions[names_.at(reference)] = definition;
  }
  CheckRecursion(out_);
  for (const OneOf& one : one_ofs_) {
    for (size_t i = 0; i < one.branches.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!AreDisjoint(out_, one.branches[j], one.branches[i]))
          throw SchemaError(one.path,
                            "oneOf is supported only if no value can be valid for two entries; "
                            "entries {} and {} may share values: use anyOf",
                            j, i);
  }
  SchemaJson result = out_.root;
  for (const auto& [name, definition] : out_.definitions) result["$defs"][name] = definition;
  return result;
}

bool SchemaRewriter::IsConstraint(const SchemaJson& schema, const std::string& path) {
  if (++nodes_ > kMaxNodes)
    throw SchemaError(path, "the schema has more than {} subschemas", kMaxNodes);
  if (schema == true) return false;
  if (schema == false) throw SchemaError(path, "the schema false accepts no value");
  if (!schema.is_object()) throw SchemaError(path, "the schema is not an object or a boolean");
  CheckKeywords(schema, path);
  return true;
}

SchemaJson SchemaRewriter::Rewrite(const SchemaJson& schema, const std::string& path) {
  const Deeper deeper(depth_, path);
  if (!IsConstraint(schema, path)) return SchemaJson::object();
  if (schema.contains("allOf")) return Rewrite(Flatten(schema, path), path);
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) throw SchemaError(path, "$ref is not a string");
    if (!Without(schema, {"$ref"}).empty()) return Rewrite(Flatten(schema, path), path);
    return RewriteReference(schema["$ref"].get<std::string>(), path);
  }
  for (const char* keyword : {"anyOf", "oneOf"})
    if (schema.contains(keyword)) return RewriteBranches(schema, keyword, path);
  if (schema.contains("enum") || schema.contains("const")) return RewriteValues(schema, path);
  const std::vector<std::string> types = TypesOf(schema, path);
  if (types.empty()) return SchemaJson::object();
  SchemaJson any = SchemaJson::array();
  for (const std::string& type : types)
    any.push_back(RewriteTyped(
        schema, type, path,
        [this](const SchemaJson& sub, const std::string& where) { return Rewrite(sub, where); }));
  return any.size() == 1 ? any[0] : SchemaJson{{"anyOf", std::move(any)}};
}

SchemaJson SchemaRewriter::RewriteReference(const std::string& reference, const std::string& path) {
  Resolve(reference, path);  // reports a missing target here
  if (reference == "#" || reference == "#/") return {{"$ref", "#"}};
  const auto [entry, added] = names_.try_emplace(reference, fmt::format("d{}", names_.size()));
  if (added) queue_.push_back(reference);
  return {{"$ref", "#/$defs/" + entry->second}};
}

SchemaJson SchemaRewriter::RewriteBranches(const SchemaJson& schema, const char* keyword,
                                           const std::string& path) {
  const SchemaJson rest = Without(schema, {keyword});
  SchemaJson branches = SchemaJson::array();
  const SchemaJson& list = ListOf(schema, keyword, path);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == false) continue;
    const std::string where = fmt::format("{}/{}/{}", path, keyword, i);
    branches.push_back(Rewrite(
        rest.empty() ? list[i] : MergeSchemas(Flatten(list[i], where), rest, where), where));
  }
  if (branches.empty()) throw SchemaError(path, "{} accepts no value", keyword);
  if (std::string_view(keyword) == "oneOf") one_ofs_.push_back({path, branches});
  return branches.size() == 1 ? branches[0] : SchemaJson{{"anyOf", std::move(branches)}};
}

SchemaJson SchemaRewriter::RewriteValues(const SchemaJson& schema, const std::string& path) {
  const SchemaJson rest = Without(schema, {"enum", "const", "type"});
  const char* keyword = schema.contains("const") ? "const" : "enum";
  if (!rest.empty())
    throw SchemaError(path, "{} together with {} is not supported", rest.items().begin().key(),
                      keyword);
  const std::vector<std::string> types = TypesOf(schema, path);
  SchemaJson kept = SchemaJson::array();
  for (const SchemaJson& value : ValuesOf(schema, path)) {
    const bool fits = types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
                        return HasType(value, type);
                      });
    if (fits && std::ranges::find(kept, value) == kept.end()) kept.push_back(value);
  }
  if (kept.empty()) throw SchemaError(path, "{} has no value of the schema's type", keyword);
  return {{"enum", std::move(kept)}};
}

SchemaJson SchemaRewriter::Flatten(const SchemaJson& schema, const std::string& path) {
  const Deeper deeper(depth_, path);
  if (!IsConstraint(schema, path)) return SchemaJson::object();
  // These keywords apply to properties and items that no entry of $ref and allOf has evaluated. The
  // merged schema can keep them unchanged. If an entry has the keyword itself, it has evaluated
  // everything, so the outer keyword is dropped.
  constexpr std::array<const char*, 2> kOfTheRest = {"unevaluatedProperties", "unevaluatedItems"};
  SchemaJson merged = Without(schema, {"$ref", "allOf", kOfTheRest[0], kOfTheRest[1]});
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) throw SchemaError(path, "$ref is not a string");
    const auto reference = schema["$ref"].get<std::string>();
    merged = MergeSchemas(merged, Flatten(Resolve(reference, path), reference), path);
  }
  if (schema.contains("allOf")) {
    const SchemaJson& list = ListOf(schema, "allOf", path);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("{}/allOf/{}", path, i);
      merged = MergeSchemas(merged, Flatten(list[i], where), where);
    }
  }
  for (const char* keyword : kOfTheRest)
    if (schema.contains(keyword) && !merged.contains(keyword)) merged[keyword] = schema[keyword];
  return merged;
}

const SchemaJson& SchemaRewriter::Resolve(const std::string& reference,
                                          const std::string& path) const {
  if (reference == "#" || reference == "#/") return root_;
  if (!reference.starts_with("#/"))
    throw SchemaError(path,
                      "$ref {} is not supported: want a place in this schema, such as "
                      "#/$defs/name",
                      reference);
  const SchemaJson* found = &root_;
  for (size_t begin = 2; begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    found = Select(*found, DecodePart(std::string_view(reference).substr(begin, end - begin)));
    if (!found) throw SchemaError(path, "$ref {} leads to no schema", reference);
    begin = end + 1;
  }
  return *found;
}

}  // namespace switchyard
