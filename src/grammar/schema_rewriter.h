// Rewrites a JSON Schema into the subset that XGrammar compiles exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace switchyard {

using SchemaJson = nlohmann::ordered_json;

// The Error of a schema that cannot be honoured: "#/properties/a: <what>". `path`: a JSON pointer.
template <typename... Args>
Error SchemaError(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return Invalid("{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

// Keywords that do not constrain values, such as title.
bool IsAnnotation(const std::string& keyword);
// Throws SchemaError for a keyword that is unknown or never supported.
void CheckKeywords(const SchemaJson& schema, const std::string& path);

// The conjunction of two schemas without $ref and allOf at their top level. Throws SchemaError with
// the name of a keyword that cannot be merged.
SchemaJson MergeSchemas(const SchemaJson& a, const SchemaJson& b, const std::string& path);

// Rewrites `schema` for values of one type. CheckKeywords has accepted the schema, and `type` is
// one of its types. The result has only keywords that apply to the type. `rewrite` rewrites
// subschemas.
using RewriteSubschema =
    std::function<SchemaJson(const SchemaJson& schema, const std::string& path)>;
SchemaJson RewriteTyped(const SchemaJson& schema, const std::string& type, const std::string& path,
                        const RewriteSubschema& rewrite);

// The types of a schema: its `type`, or the type to which its keywords apply. Empty: any type.
std::vector<std::string> TypesOf(const SchemaJson& schema, const std::string& path);
// Whether the value has the type by the rules of JSON Schema: 3.0 is an integer.
bool HasType(const SchemaJson& value, const std::string& type);

// Whether the format only describes the use of a string and accepts all strings, like password.
bool IsFormatOfAnyString(std::string_view format);
// The regular expression of a string format; all its strings have `least` to `most` characters.
// Empty if XGrammar's own implementation of the format is used. Throws SchemaError for an unknown
// format, and for lengths that are not implemented.
std::string PatternOfFormat(const std::string& format, int64_t least, int64_t most,
                            const std::string& path);

// Definitions of a rewritten schema by name. A $ref of a rewritten schema is "#" or
// "#/$defs/NAME".
struct RewrittenSchema {
  SchemaJson root;
  std::map<std::string, SchemaJson> definitions;

  const SchemaJson& Resolve(const std::string& reference) const;
};

// Whether types, constant values and required properties show that no value is valid for both
// rewritten schemas.
bool AreDisjoint(const RewrittenSchema& whole, const SchemaJson& a, const SchemaJson& b);
// Throws SchemaError if a $ref leads back to itself through $ref and anyOf alone, or if no finite
// value is valid.
void CheckRecursion(const RewrittenSchema& whole);

// Rewrites one schema. The result accepts a subset of the values that `root` accepts: properties
// must have the order of the schema, and a `pattern` must match the whole string. Equal schemas
// give equal results.
class SchemaRewriter {
 public:
  explicit SchemaRewriter(const SchemaJson& root) : root_(root) {}
  SchemaJson Run();

 private:
  // The branches of a oneOf. At the end they are checked to be disjoint.
  struct OneOf {
    std::string path;
    SchemaJson branches;
  };

  // Counts and checks a schema. Returns false for the schema `true`, which is no constraint.
  bool IsConstraint(const SchemaJson& schema, const std::string& path);
  SchemaJson Rewrite(const SchemaJson& schema, const std::string& path);
  SchemaJson RewriteReference(const std::string& reference, const std::string& path);
  SchemaJson RewriteBranches(const SchemaJson& schema, const char* keyword,
                             const std::string& path);
  SchemaJson RewriteValues(const SchemaJson& schema, const std::string& path);
  // The schema without $ref and allOf at its top level, and without annotations.
  SchemaJson Flatten(const SchemaJson& schema, const std::string& path);
  const SchemaJson& Resolve(const std::string& reference, const std::string& path) const;

  const SchemaJson& root_;
  RewrittenSchema out_;
  std::map<std::string, std::string> names_;  // names of definitions, by reference
  std::vector<std::string> queue_;            // references that are not rewritten yet
  std::vector<OneOf> one_ofs_;
  int nodes_ = 0, depth_ = 0;
};

}  // namespace switchyard
