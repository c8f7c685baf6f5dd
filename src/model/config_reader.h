// Typed reading of one JSON object of a configuration file, with errors that name file, key and
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

// Keys that hold null count as absent: checkpoints spell "not used" either way. A list of keys
// means spellings of one setting, of which the first present counts. Every getter throws Error
// kInvalid naming the key and its value where the type or range is wrong; those without a default
// also where no spelling is present. Cheap to copy; immutable.
class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;

  // `file` stands in messages. Error where `text` is not a JSON object.
  ConfigReader(std::string_view text, std::string file);

  bool Has(std::string_view key) const;
  // "rope_scaling.factor is -1; want ..." with the file's name before it.
  std::string Where(std::string_view key) const;

  int64_t Int(Keys keys, int64_t min, int64_t max) const;
  int64_t IntOr(Keys keys, int64_t fallback, int64_t min, int64_t max) const;
  double Double(Keys keys, double min, double max) const;
  double DoubleOr(Keys keys, double fallback, double min, double max) const;
  bool BoolOr(std::string_view key, bool fallback) const;
  std::string StringOr(Keys keys, std::string_view fallback) const;
  std::vector<std::string> Strings(std::string_view key) const;  // absent: empty
  bool IsString(std::string_view key) const;
  bool IsNull(std::string_view key) const;   // there, and null
  std::vector<std::string> Members() const;  // the object's keys, in their order by name
  // A list of integers, or a single one; absent: empty.
  std::vector<float> Floats(std::string_view key, double min, double max) const;
  std::vector<int64_t> Ints(std::string_view key, int64_t min, int64_t max) const;
  // The object under `key`; nullopt where absent.
  std::optional<ConfigReader> Object(std::string_view key) const;

 private:
  struct Value;
  ConfigReader(std::shared_ptr<const Value> value, std::string file, std::string prefix);
  std::string_view FirstPresent(Keys keys) const;  // empty: none

  std::shared_ptr<const Value> value_;
  std::string file_, prefix_;
};

}  // namespace switchyard
