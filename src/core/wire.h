// Serialization of messages between processes: fixed-width little-endian numbers, length-prefixed
// strings and arrays.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace switchyard {

template <typename T>
concept WireScalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Appends values to a growing buffer. No versioning: both ends are the same build.
class WireWriter {
 public:
  template <WireScalar T>
  void Put(T value) {
    Append(&value, sizeof value);
  }
  void Put(std::string_view s) {
    Put(static_cast<uint64_t>(s.size()));
    Append(s.data(), s.size());
  }
  void Put(const std::string& s) { Put(std::string_view(s)); }
  template <WireScalar T>
  requires(!std::is_same_v<T, bool>) void Put(const std::vector<T>& v) {
    Put(static_cast<uint64_t>(v.size()));
    Append(v.data(), v.size() * sizeof(T));
  }
  template <WireScalar T>
  void Put(const std::optional<T>& v) {
    Put(v.has_value());
    if (v) Put(*v);
  }

  std::string Take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  void Append(const void* data, size_t n) { bytes_.append(static_cast<const char*>(data), n); }
  std::string bytes_;
};

// Reads the output of a WireWriter in the same order. Throws Error kInvalid if the message is
// truncated.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  template <WireScalar T>
  T Get() {
    T value;
    std::memcpy(&value, Next(sizeof value), sizeof value);
    return value;
  }
  std::string GetString() {
    const auto n = Get<uint64_t>();
    return {Next(n), n};
  }
  template <WireScalar T>
  std::vector<T> GetVector() {
    const auto n = Get<uint64_t>();
    if (n > bytes_.size() / sizeof(T))
      throw Invalid("message is truncated inside an array of {} elements", n);
    std::vector<T> v(n);
    if (n) std::memcpy(v.data(), Next(n * sizeof(T)), n * sizeof(T));
    return v;
  }
  template <WireScalar T>
  std::optional<T> GetOptional() {
    if (!Get<bool>()) return std::nullopt;
    return Get<T>();
  }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  const char* Next(size_t n) {
    if (n > bytes_.size()) throw Invalid("message is truncated: only {} bytes left", bytes_.size());
    const char* p = bytes_.data();
    bytes_.remove_prefix(n);
    return p;
  }
  std::string_view bytes_;
};

}  // namespace switchyard
