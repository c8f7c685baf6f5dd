// Typed access to a JSON object of a configuration file. Errors name file, key and
// value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The JSON text with null in place of Infinity, -Infinity and NaN, which Python writes and JSON
// does not have. Text in strings stays unchanged.
std::string WithoutInfinities(std::string_view json);

// A key with value null counts as absent: checkpoints spell "not used" either way. A list of keys
// gives alternative spellings of one setting; the first present one is used. Every getter throws
// Error kInvalid with the key and its value for a wrong type or range; getters without a default
// also throw if no spelling is present. Cheap to copy. Copies share the set of keys that were read,
// so they belong to one thread.
class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;

  // `file`: its name in messages. Error if `text` is not a JSON object (after WithoutInfinities).
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

  // Marks keys as read that have no effect because of other keys.
  void Ignore(Keys keys) const;
  // The keys of this object whose value is not null and that neither a getter nor Ignore has read.
  std::vector<std::string> Unread() const;
  // Whether a getter, or Ignore, was called with the key.
  bool WasRead(std::string_view key) const;
  // Whether the value of a present key equals a JSON text; numbers are compared by value.
  bool Equals(std::string_view key, std::string_view json) const;
  std::string ValueText(std::string_view key) const;  // the value of a present key, for messages

 private:
  struct Value;
  using ReadKeys = std::set<std::string, std::less<>>;  // with prefixes: "rope_scaling.factor"
  ConfigReader(std::shared_ptr<const Value> value, std::string file, std::string prefix,
               std::shared_ptr<ReadKeys> read);
  std::string_view FirstPresent(Keys keys) const;  // empty: none

  std::shared_ptr<const Value> value_;
  std::string file_, prefix_;
  std::shared_ptr<ReadKeys> read_;
};

}  // namespace switchyard
