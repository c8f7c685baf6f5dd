#include "text/output/offered_tools.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "text/output/output_events.h"
#include "text/output/python_literal.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 16;  // nesting of anyOf and references

JsonTypes TypeNamed(const Json& name) {
  if (name == "string") return kJsonString;
  if (name == "integer") return kJsonInteger;
  if (name == "number") return kJsonNumber | kJsonInteger;
  if (name == "boolean") return kJsonBoolean;
  if (name == "object") return kJsonObject;
  if (name == "array") return kJsonArray;
  if (name == "null") return kJsonNull;
  return 0;
}

JsonTypes TypeOfValue(const Json& value) {
  if (value.is_string()) return kJsonString;
  if (value.is_number_integer()) return kJsonInteger;
  if (value.is_number()) return kJsonNumber;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_object()) return kJsonObject;
  if (value.is_array()) return kJsonArray;
  return value.is_null() ? kJsonNull : 0;
}

// Reads types from schemas within the document `root`.
class SchemaReader {
 public:
  explicit SchemaReader(const Json& root) : root_(root) {}

  JsonTypes TypesOf(const Json& schema, int depth = 0) const {
    if (!schema.is_object() || depth > kMaxSchemaDepth) return 0;
    JsonTypes types = 0;
    if (const auto type = schema.find("type"); type != schema.end()) {
      types |= TypeNamed(*type);
      if (type->is_array()) {
        for (const Json& name : *type) types |= TypeNamed(name);
      }
    }
    if (types != 0) return types;
    if (const auto value = schema.find("const"); value != schema.end())
      types |= TypeOfValue(*value);
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      for (const Json& value : *values) types |= TypeOfValue(value);
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const auto options = schema.find(key);
      if (options == schema.end() || !options->is_array()) continue;
      for (const Json& option : *options) types |= TypesOf(option, depth + 1);
    }
    if (const Json* target = Referred(schema)) types |= TypesOf(*target, depth + 1);
    return types;
  }

 private:
  // The schema of a local reference "#/…"; nullptr if there is none.
  const Json* Referred(const Json& schema) const {
    const auto reference = schema.find("$ref");
    if (reference == schema.end() || !reference->is_string()) return nullptr;
    const auto& path = reference->get_ref<const std::string&>();
    if (!path.starts_with("#/")) return nullptr;
    const Json* at = &root_;
    for (size_t begin = 2; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const auto next = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
      if (!at->is_object() || next == at->end()) return nullptr;
      at = &*next;
      begin = end + 1;
    }
    return at;
  }

  const Json& root_;
};

JsonTypes TypeOfText(std::string_view json) {
  switch (json.front()) {
    case '"':
      return kJsonString;
    case '{':
      return kJsonObject;
    case '[':
      return kJsonArray;
    case 't':
    case 'f':
      return kJsonBoolean;
    case 'n':
      return kJsonNull;
    default:
      return json.find_first_of(".eE") == std::string_view::npos ? kJsonInteger : kJsonNumber;
  }
}

std::string Quoted(std::string_view text) { return '"' + EscapeJson(text) + '"'; }

}  // namespace

OfferedTools::OfferedTools(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    auto& types = types_[name->get<std::string>()];
    const auto schema = function->find("parameters");
    if (schema == function->end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    const SchemaReader reader(*schema);
    for (const auto& [key, property] : properties->items()) types[key] = reader.TypesOf(property);
  }
}

JsonTypes OfferedTools::TypesOf(std::string_view function, std::string_view parameter) const {
  const auto tool = types_.find(function);
  if (tool == types_.end()) return 0;
  const auto type = tool->second.find(parameter);
  return type == tool->second.end() ? JsonTypes{0} : type->second;
}

std::string ParameterJson(std::string_view text, JsonTypes types) {
  if (types == kJsonString) return Quoted(text);
  const std::string_view trimmed = TrimMarkupSpace(text);
  const bool json = !trimmed.empty() && Json::accept(trimmed);
  // If the type is unknown, text in quotes becomes a string that includes the quotes, because these
  // formats write strings without quotes.
  if (json) {
    const JsonTypes own = TypeOfText(trimmed);
    if (types == 0 ? own != kJsonString : (types & own) != 0) return std::string(trimmed);
  }
  if (const auto literal = PythonLiteralToJson(trimmed)) {
    const JsonTypes own = TypeOfText(*literal);
    if (types == 0 ? own != kJsonString : (types & own) != 0 && own != kJsonString) return *literal;
  }
  const bool string = types == 0 || (types & kJsonString) != 0;
  return json && !string ? std::string(trimmed) : Quoted(text);
}

std::string EscapeJson(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out;
}

}  // namespace switchyard
