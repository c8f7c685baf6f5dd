#include "server/api/json_body.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "text/jinja/exact_json.h"

namespace switchyard {
namespace {

// Whether a chat template reads the field. In such fields, integers beyond 64 bits keep their
// digits.
bool ReachesTemplates(std::string_view field) {
  return field == "messages" || field == "tools" || field == "functions" || field == "documents" ||
         field == "chat_template_kwargs";
}

[[noreturn]] void Wrong(const std::string& name, const char* want, const Json& got) {
  std::string shown = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw InvalidField(name, "{} is {}, want {}", name, shown, want);
}

// Accepts the same forms of a boolean as pydantic's lax mode.
std::optional<bool> BoolOf(const Json& v) {
  if (v.is_boolean()) return v.get<bool>();
  if (v == 0 || v == 1) return v == 1;
  if (!v.is_string()) return std::nullopt;
  std::string word = v.get<std::string>();
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"true", "1", "yes", "y", "on", "t"})
    if (word == yes) return true;
  for (const char* no : {"false", "0", "no", "n", "off", "f"})
    if (word == no) return false;
  return std::nullopt;
}

// Accepts a number, or a string that contains one.
std::optional<double> NumberOf(const Json& v) {
  if (v.is_number()) return v.get<double>();
  if (!v.is_string()) return std::nullopt;
  const std::string text = v.get<std::string>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return number;
}

std::optional<int64_t> IntegerOf(const Json& v) {
  if (v.is_number_unsigned() && v.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  if (v.is_number_integer()) return v.get<int64_t>();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const std::optional<double> number = NumberOf(v);
  if (!number || *number != std::trunc(*number) || std::abs(*number) > kExact) return std::nullopt;
  return static_cast<int64_t>(*number);
}

// Upper bounds of the memory of a parsed value. A growing list allocates twice its size before it
// frees the old block. The smallest heap block has 32 bytes.
constexpr size_t kValueBytes = 3 * sizeof(Json), kContainerBytes = 64, kKeyBytes = 3 * 32;
// Bytes of memory for each byte of a prompt's text: a copy of the prompt, its normalized form, its
// words and its token ids.
constexpr size_t kTextFactor = 12;

// Upper bound of the memory of the parsed `body`. Linear time and no allocation, so that a body
// that is too large is rejected before it is parsed.
size_t ParsedBytes(std::string_view body) {
  size_t bytes = kValueBytes;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      bytes += kTextFactor;
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      bytes += kContainerBytes;
      in_string = true;
    } else if (c == '{' || c == '[') {
      bytes += kValueBytes + kContainerBytes;
    } else if (c == ',') {
      bytes += kValueBytes;
    } else if (c == ':') {
      bytes += kKeyBytes;
    }
  }
  return bytes;
}

}  // namespace

Json ParseBody(const http::Request& request) {
  return ParseBody(request.body, request.memory.get());
}

Json ParseBody(std::string_view body, http::MemoryCharge* memory) {
  try {
    if (memory) memory->Require(ParsedBytes(body));
    Json json = jinja::ParseExactJson(body, "body", kBodyLimits, ReachesTemplates);
    if (!json.is_object()) throw Invalid("the body is not a JSON object");
    return json;
  } catch (const Json::parse_error& e) {
    throw Invalid("the body is not JSON: error at byte {}", e.byte);
  } catch (const Json::exception& e) {
    throw Invalid("the body is not JSON: {}", e.what());
  }
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string DumpExact(const Json& json) {
  if (const auto digits = jinja::BigIntegerOf(json)) return *digits;
  if (!json.is_structured()) return Dump(json);
  std::string text(1, json.is_object() ? '{' : '[');
  for (const auto& [key, value] : json.items()) {
    if (text.size() > 1) text += ',';
    if (json.is_object()) text += Dump(Json(key)) + ':';
    text += DumpExact(value);
  }
  return text + (json.is_object() ? '}' : ']');
}

const Json* Fields::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::Bool(const char* key, bool otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  const std::optional<bool> value = BoolOf(*v);
  if (!value) Wrong(Name(key), "true or false", *v);
  return *value;
}

int64_t Fields::Int(const char* key, int64_t otherwise, int64_t least, int64_t most) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  const std::optional<int64_t> value = IntegerOf(*v);
  if (!value || *value < least || *value > most)
    Wrong(Name(key), fmt::format("an integer from {} to {}", least, most).c_str(), *v);
  return *value;
}

int32_t Fields::Int32(const char* key, int32_t otherwise) const {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(Int(key, otherwise, Limits::min(), Limits::max()));
}

double Fields::Number(const char* key, double otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  const std::optional<double> value = NumberOf(*v);
  if (!value) Wrong(Name(key), "a number", *v);
  return *value;
}

std::optional<uint64_t> Fields::Seed(const char* key) const {
  const Json* v = Find(key);
  if (!v) return std::nullopt;
  if (!v->is_number_integer()) Wrong(Name(key), "an integer", *v);
  return v->is_number_unsigned() ? v->get<uint64_t>() : static_cast<uint64_t>(v->get<int64_t>());
}

std::string Fields::String(const char* key, std::string otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  if (!v->is_string()) Wrong(Name(key), "a string", *v);
  return v->get<std::string>();
}

std::vector<std::string> Fields::Strings(const char* key) const {
  const Json* v = Find(key);
  if (!v) return {};
  if (v->is_string()) return {v->get<std::string>()};
  if (!v->is_array()) Wrong(Name(key), "a string or a list of strings", *v);
  std::vector<std::string> strings;
  for (const Json& item : *v) {
    if (!item.is_string()) Wrong(Name(key), "a string or a list of strings", *v);
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::vector<int32_t> Fields::Ids(const char* key) const {
  const Json* v = Find(key);
  return v ? ToIds(*v, Name(key)) : std::vector<int32_t>();
}

std::vector<std::pair<int32_t, float>> Fields::LogitBias(const char* key) const {
  std::vector<std::pair<int32_t, float>> biases;
  const Json* v = Find(key);
  if (!v) return biases;
  if (!v->is_object()) Wrong(Name(key), "an object of token ids and numbers", *v);
  for (const auto& [name, bias] : v->items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size()) {
      throw InvalidField(Name(key), "{}: {} is not a token id", Name(key), name);
    }
    if (!bias.is_number()) Wrong(Name(key) + "." + name, "a number", bias);
    biases.emplace_back(id, bias.get<float>());
  }
  return biases;
}

std::vector<int32_t> ToIds(const Json& list, const std::string& name) {
  if (!list.is_array()) Wrong(name, "a list of token ids", list);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    // No vocabulary has ids beyond int32. Front::Check compares the ids with the vocabulary size.
    if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() > INT32_MAX) {
      Wrong(name, "a list of token ids", item);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace switchyard
