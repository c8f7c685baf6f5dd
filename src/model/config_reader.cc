#include "model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedChars = 60;  // most characters of a value that a message quotes

std::string Show(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxQuotedChars) text = text.substr(0, kMaxQuotedChars) + "...";
  return text;
}

int64_t ToInt(const json& value, const std::string& where, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
  // Some exporters write sizes as 128.0.
  const bool whole = value.is_number_float() && std::fabs(value.get<double>()) < 0x1p53 &&
                     value.get<double>() == std::floor(value.get<double>());
  const int64_t n = fits    ? value.get<int64_t>()
                    : whole ? static_cast<int64_t>(value.get<double>())
                            : 0;
  if ((!fits && !whole) || n < min || n > max) {
    throw Invalid("{} is {}; want an integer from {} to {}", where, Show(value), min, max);
  }
  return n;
}

}  // namespace

std::string WithoutInfinities(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string_view rest = json.substr(i);
    const auto word = [&](std::string_view name) { return !in_string && rest.starts_with(name); };
    size_t taken = 1;
    for (const std::string_view name : {"-Infinity", "Infinity", "NaN"})
      if (taken == 1 && word(name)) taken = name.size();
    if (taken > 1) {
      out += "null";
      i += taken - 1;
      continue;
    }
    if (json[i] == '"') in_string = !in_string;
    if (in_string && json[i] == '\\' && i + 1 < json.size()) out += json[i++];
    out += json[i];
  }
  return out;
}

struct ConfigReader::Value {
  json object;
};

ConfigReader::ConfigReader(std::string_view text, std::string file)
    : file_(std::move(file)), read_(std::make_shared<ReadKeys>()) {
  auto value = std::make_shared<Value>();
  value->object = ParseBoundedJson(WithoutInfinities(text), file_);
  if (!value->object.is_object()) throw Invalid("{}: want a JSON object at the top", file_);
  value_ = std::move(value);
}

ConfigReader::ConfigReader(std::shared_ptr<const Value> value, std::string file, std::string prefix,
                           std::shared_ptr<ReadKeys> read)
    : value_(std::move(value)),
      file_(std::move(file)),
      prefix_(std::move(prefix)),
      read_(std::move(read)) {}

std::string ConfigReader::Where(std::string_view key) const {
  return fmt::format("{}: {}{}", file_, prefix_, key);
}

bool ConfigReader::Has(std::string_view key) const {
  read_->insert(fmt::format("{}{}", prefix_, key));
  const auto it = value_->object.find(key);
  return it != value_->object.end() && !it->is_null();
}

std::string_view ConfigReader::FirstPresent(Keys keys) const {
  Ignore(keys);  // other spellings of the same setting
  for (std::string_view key : keys) {
    if (Has(key)) return key;
  }
  return {};
}

int64_t ConfigReader::Int(Keys keys, int64_t min, int64_t max) const {
  const std::string_view key = FirstPresent(keys);
  if (key.empty()) throw Invalid("{} is missing", Where(*keys.begin()));
  return ToInt(*value_->object.find(key), Where(key), min, max);
}

int64_t ConfigReader::IntOr(Keys keys, int64_t fallback, int64_t min, int64_t max) const {
  return FirstPresent(keys).empty() ? fallback : Int(keys, min, max);
}

double ConfigReader::Double(Keys keys, double min, double max) const {
  const std::string_view key = FirstPresent(keys);
  if (key.empty()) throw Invalid("{} is missing", Where(*keys.begin()));
  const json& value = *value_->object.find(key);
  if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
    throw Invalid("{} is {}; want a number from {} to {}", Where(key), Show(value), min, max);
  }
  return value.get<double>();
}

double ConfigReader::DoubleOr(Keys keys, double fallback, double min, double max) const {
  return FirstPresent(keys).empty() ? fallback : Double(keys, min, max);
}

bool ConfigReader::BoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  const json& value = *value_->object.find(key);
  if (!value.is_boolean()) {
    throw Invalid("{} is {}; want true or false", Where(key), Show(value));
  }
  return value.get<bool>();
}

std::string ConfigReader::StringOr(Keys keys, std::string_view fallback) const {
  const std::string_view key = FirstPresent(keys);
  if (key.empty()) return std::string(fallback);
  const json& value = *value_->object.find(key);
  if (!value.is_string()) throw Invalid("{} is {}; want a string", Where(key), Show(value));
  return value.get<std::string>();
}

std::vector<std::string> ConfigReader::Strings(std::string_view key) const {
  std::vector<std::string> out;
  if (!Has(key)) return out;
  const json& list = *value_->object.find(key);
  if (!list.is_array()) throw Invalid("{} is {}; want a list of strings", Where(key), Show(list));
  for (const json& item : list) {
    if (!item.is_string()) {
      throw Invalid("{} holds {}; want a list of strings", Where(key), Show(item));
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

bool ConfigReader::IsString(std::string_view key) const {
  return Has(key) && value_->object.find(key)->is_string();
}

std::vector<std::string> ConfigReader::Members() const {
  std::vector<std::string> out;
  for (const auto& item : value_->object.items()) out.push_back(item.key());
  return out;
}

std::vector<int64_t> ConfigReader::Ints(std::string_view key, int64_t min, int64_t max) const {
  std::vector<int64_t> out;
  if (!Has(key)) return out;
  const json& value = *value_->object.find(key);
  if (!value.is_array()) {
    out.push_back(ToInt(value, Where(key), min, max));
    return out;
  }
  for (const json& item : value) out.push_back(ToInt(item, Where(key), min, max));
  return out;
}

std::vector<float> ConfigReader::Floats(std::string_view key, double min, double max) const {
  std::vector<float> out;
  if (!Has(key)) throw Invalid("{} is missing", Where(key));
  const json& list = *value_->object.find(key);
  if (!list.is_array()) throw Invalid("{} is {}; want a list of numbers", Where(key), Show(list));
  for (const json& item : list) {
    if (!item.is_number() || !(item.get<double>() >= min && item.get<double>() <= max)) {
      throw Invalid("{} holds {}; want numbers from {} to {}", Where(key), Show(item), min, max);
    }
    out.push_back(item.get<float>());
  }
  return out;
}

bool ConfigReader::IsNull(std::string_view key) const {
  read_->insert(fmt::format("{}{}", prefix_, key));
  const auto it = value_->object.find(key);
  return it != value_->object.end() && it->is_null();
}

std::vector<ConfigReader> ConfigReader::Objects(std::string_view key) const {
  std::vector<ConfigReader> out;
  if (!Has(key)) return out;
  const json& list = *value_->object.find(key);
  if (!list.is_array()) throw Invalid("{} is {}; want a list of objects", Where(key), Show(list));
  for (const json& item : list) {
    if (!item.is_object()) {
      throw Invalid("{} holds {}; want a list of objects", Where(key), Show(item));
    }
    out.push_back(ConfigReader(std::make_shared<const Value>(Value{item}), file_,
                               fmt::format("{}{}[{}].", prefix_, key, out.size()), read_));
  }
  return out;
}

std::optional<ConfigReader> ConfigReader::Object(std::string_view key) const {
  if (!Has(key)) return std::nullopt;
  const json& value = *value_->object.find(key);
  if (!value.is_object()) throw Invalid("{} is {}; want an object", Where(key), Show(value));
  return ConfigReader(std::make_shared<const Value>(Value{value}), file_,
                      fmt::format("{}{}.", prefix_, key), read_);
}

void ConfigReader::Ignore(Keys keys) const {
  for (const std::string_view key : keys) read_->insert(fmt::format("{}{}", prefix_, key));
}

std::vector<std::string> ConfigReader::Unread() const {
  std::vector<std::string> out;
  for (const auto& item : value_->object.items())
    if (!item.value().is_null() && !read_->contains(prefix_ + item.key()))
      out.push_back(item.key());
  return out;
}

bool ConfigReader::WasRead(std::string_view key) const {
  return read_->contains(fmt::format("{}{}", prefix_, key));
}

bool ConfigReader::Equals(std::string_view key, std::string_view text) const {
  const auto it = value_->object.find(key);
  return it != value_->object.end() && *it == json::parse(text);
}

std::string ConfigReader::ValueText(std::string_view key) const {
  return Show(*value_->object.find(key));
}

}  // namespace switchyard
