// Typed access to a JSON object of a configuration file. Errors name file, key and
// value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// A key with value null counts as absent: checkpoints spell "not used" either way. A list of keys
// gives alternative spellings of one setting; the first present one is used. Every getter throws
// Error kInvalid with the key and its value for a wrong type or range; getters without a default
// also throw if no spelling is present. Cheap to copy; immutable.
class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;

  // `file`: its name in messages. Error if `text` is not a JSON object.
  ConfigReader(std::string_view text, std::string file);

  bool Has(std::string_view key) const;
  // "rope_scaling.factor" prefixed with the file's name, for messages.
  std::string Where(std::string_view key) const;

  int64_t Int(Keys keys, int64_t min, int64_t max) const;
  int64_t IntOr(Keys keys, int64_t fallback, int64_t min, int64_t max) const;
  double Double(Keys keys, double min, double max) const;
  double DoubleOr(Keys keys, double fallback, double min, double max) const;
  bool BoolOr(std::string_view key, bool fallback) const;
  std::string StringOr(Keys keys, std::string_view fallback) const;
  std::vector<std::string> Strings(std::string_view key) const;  // absent: empty
  bool IsString(std::string_view key) const;
  bool IsNull(std::string_view key) const;   // present, and null
  std::vector<std::string> Members() const;  // the object's keys, sorted by name
  // A list of numbers. Error if the key is absent.
  std::vector<float> Floats(std::string_view key, double min, double max) const;
  // A list of integers, or a single one; absent: empty.
  std::vector<int64_t> Ints(std::string_view key, int64_t min, int64_t max) const;
  // The elements of a list of objects; absent: empty.
  std::vector<ConfigReader> Objects(std::string_view key) const;
  // The object under `key`; nullopt where absent.
  std::optional<ConfigReader> Object(std::string_view key) const;
  // The list of objects under `key`; absent: empty.
  std::vector<ConfigReader> Objects(std::string_view key) const;

 private:
  struct Value;
  ConfigReader(std::shared_ptr<const Value> value, std::string file, std::string prefix);
  std::string_view FirstPresent(Keys keys) const;  // empty: none

  std::shared_ptr<const Value> value_;
  std::string file_, prefix_;
};

}  // namespace switchyard
