// Reads untrusted JSON: every accessor checks the type, and its error names the file and key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// A value and its location. Refers to the document, which must outlive it.
class JsonNode {
 public:
  using Json = nlohmann::json;

  // `where`: "dir/tokenizer.json", later "dir/tokenizer.json: model.vocab".
  JsonNode(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const Json& raw() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  // The member `key` of an object; a null node if it is missing.
  JsonNode operator[](std::string_view key) const;
  // The elements of an array; none for null.
  std::vector<JsonNode> Items() const;
  // The members of a "Sequence" component: at most kMaxComponents objects, since each one processes
  // every text. None for null.
  std::vector<JsonNode> Components() const;

  std::string String() const;
  int64_t Integer(int64_t least, int64_t most) const;
  bool Bool() const;
  bool BoolOr(bool value_if_null) const { return is_null() ? value_if_null : Bool(); }
  // The value as a string of exactly one character.
  char32_t Character() const;

  // Throws Error unless the value is an object or an array.
  void CheckObject() const;
  void CheckArray() const;

 private:
  const Json* value_;
  std::string where_;
};

// Maximum nesting of "Sequence" components.
inline constexpr int kMaxComponentDepth = 16;
inline constexpr size_t kMaxComponents = 256;  // components of one sequence

}  // namespace switchyard
