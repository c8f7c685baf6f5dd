// Serialization of structs from one list of their fields, which writer and reader share. So the two
// cannot disagree.
//
// For a struct S, define a function that FieldWriter and FieldReader find by name lookup,
//   template <typename Codec, OneOf<S> T> void Fields(Codec& codec, T& s) { codec(s.a, s.b); }
// Fields may be numbers, enums, strings, paths, other such structs, and vectors, optionals, pairs
// and variants of them. An enum needs `constexpr E LastOf(E)`, its largest value.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/wire.h"

namespace switchyard {

// T is one of S, possibly const, so that one function serves writing and reading.
template <typename T, typename... S>
concept OneOf = (std::same_as<std::remove_const_t<T>, S> || ...);

class FieldWriter {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }
  std::string Take() { return out_.Take(); }

 private:
  template <typename T>
  void Put(const T& value) {
    if constexpr (std::same_as<T, std::filesystem::path>) {
      out_.Put(value.native());
    } else if constexpr (WireScalar<T> || std::same_as<T, std::string>) {
      out_.Put(value);
    } else {
      Fields(*this, value);
    }
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    if constexpr (WireScalar<T>) {
      out_.Put(values);
    } else {
      out_.Put(static_cast<uint64_t>(values.size()));
      for (const T& value : values) Put(value);
    }
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& value) {
    Put(value.first);
    Put(value.second);
  }
  template <typename... T>
  void Put(const std::variant<T...>& value) {
    out_.Put(static_cast<uint8_t>(value.index()));
    std::visit([this](const auto& alternative) { this->Put(alternative); }, value);
  }

  WireWriter out_;
};

// Throws Error kInvalid on bytes that FieldWriter cannot have written.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }
  void ExpectEnd() const {
    if (!in_.AtEnd()) throw Invalid("message has trailing bytes");
  }

 private:
  template <typename T>
  void Get(T& value) {
    if constexpr (std::same_as<T, bool>) {
      value = Number<uint8_t>(1) == 1;
    } else if constexpr (std::is_enum_v<T>) {
      using Raw = std::underlying_type_t<T>;
      value = static_cast<T>(Number<Raw>(static_cast<Raw>(LastOf(T{}))));
    } else if constexpr (WireScalar<T>) {
      value = in_.Get<T>();
    } else if constexpr (std::same_as<T, std::string> || std::same_as<T, std::filesystem::path>) {
      value = in_.GetString();
    } else {
      Fields(*this, value);
    }
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    if constexpr (WireScalar<T>) {
      values = in_.GetVector<T>();
    } else {
      values.clear();  // grows as elements are read: the count is untrusted
      for (auto n = in_.Get<uint64_t>(); n > 0; --n) Get(values.emplace_back());
    }
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool has_value = false;
    Get(has_value);
    value.reset();
    if (has_value) Get(value.emplace());
  }
  template <typename A, typename B>
  void Get(std::pair<A, B>& value) {
    Get(value.first);
    Get(value.second);
  }
  template <typename... T>
  void Get(std::variant<T...>& value) {
    const size_t index = Number<uint8_t>(sizeof...(T) - 1);
    size_t i = 0;
    ((i++ == index ? Get(value.template emplace<T>()) : void()), ...);
  }
  template <typename T>
  T Number(T largest) {
    const T value = in_.Get<T>();
    if (value > largest) throw Invalid("message has {}, the maximum is {}", value, largest);
    return value;
  }

  WireReader in_;
};

template <typename T>
std::string EncodeFields(const T& value) {
  FieldWriter writer;
  writer(value);
  return writer.Take();
}

template <typename T>
T DecodeFields(std::string_view bytes) {
  T value{};
  FieldReader reader(bytes);
  reader(value);
  reader.ExpectEnd();
  return value;
}

}  // namespace switchyard
