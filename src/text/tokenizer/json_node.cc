#include "text/tokenizer/json_node.h"

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

Error WrongType(const JsonNode& node, std::string_view wanted) {
  return Invalid("{} is {}, want {}", node.where(),
                 node.is_null() ? "missing" : node.raw().type_name(), wanted);
}

}  // namespace

JsonNode JsonNode::operator[](std::string_view key) const {
  static const Json kNull;
  CheckObject();
  const bool top = where_.find(": ") == std::string::npos;
  std::string where = where_ + (top ? ": " : ".") + std::string(key);
  const auto found = value_->find(std::string(key));
  return JsonNode(found == value_->end() ? kNull : *found, std::move(where));
}

std::vector<JsonNode> JsonNode::Items() const {
  std::vector<JsonNode> items;
  if (is_null()) return items;
  CheckArray();
  for (size_t i = 0; i < value_->size(); ++i) {
    items.emplace_back((*value_)[i], where_ + "[" + std::to_string(i) + "]");
  }
  return items;
}

std::vector<JsonNode> JsonNode::Components() const {
  if (!is_null()) CheckArray();
  if (value_->size() > kMaxComponents) {
    throw Invalid("{} has {} components, at most {} are allowed", where_, value_->size(),
                  kMaxComponents);
  }
  std::vector<JsonNode> items = Items();
  for (const JsonNode& item : items) item.CheckObject();
  return items;
}

std::string JsonNode::String() const {
  if (!value_->is_string()) throw WrongType(*this, "a string");
  return value_->get<std::string>();
}

int64_t JsonNode::Integer(int64_t least, int64_t most) const {
  if (!value_->is_number_integer()) throw WrongType(*this, "an integer");
  // An unsigned value beyond int64 is outside of every caller's range.
  const bool fits =
      !value_->is_number_unsigned() || value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  const int64_t value = fits ? value_->get<int64_t>() : INT64_MAX;
  if (!fits || value < least || value > most) {
    throw Invalid("{} is {}, want {} to {}", where_, value_->dump(), least, most);
  }
  return value;
}

bool JsonNode::Bool() const {
  if (!value_->is_boolean()) throw WrongType(*this, "true or false");
  return value_->get<bool>();
}

char32_t JsonNode::Character() const {
  const std::string text = String();
  size_t end = 0;
  const char32_t character = text.empty() ? 0 : NextCharacter(text, &end);
  if (text.empty() || end != text.size())
    throw Invalid("{} is '{}', want one character", where_, text);
  return character;
}

void JsonNode::CheckObject() const {
  if (!value_->is_object()) throw WrongType(*this, "an object");
}

void JsonNode::CheckArray() const {
  if (!value_->is_array()) throw WrongType(*this, "an array");
}

}  // namespace switchyard
