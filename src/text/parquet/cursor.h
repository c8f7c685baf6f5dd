// Bounds-checked reading of a Parquet file's bytes, and Thrift's compact protocol.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace switchyard::parquet {

// A position in bytes that it does not own. Every function throws Error kInvalid that names `where`
// and the offset if the bytes end too early. `where` must outlive the cursor.
class Cursor {
 public:
  // `base`: offset of the first byte, for error messages.
  Cursor(std::span<const uint8_t> bytes, const std::string& where, uint64_t base = 0)
      : bytes_(bytes), where_(&where), base_(base) {}

  uint64_t left() const { return bytes_.size() - at_; }
  uint64_t position() const { return at_; }
  uint64_t offset() const { return base_ + at_; }  // as in error messages
  const std::string& where() const { return *where_; }

  std::span<const uint8_t> Take(uint64_t count, std::string_view what);
  // A number in little-endian order.
  template <typename T>
  T Read(std::string_view what) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, Take(sizeof value, what).data(), sizeof value);
    return value;
  }
  uint64_t Varint(std::string_view what);  // ULEB128, at most 64 bits
  int64_t ZigZag(std::string_view what);   // a varint; 0, 1, 2, 3 stand for 0, −1, 1, −2
  [[noreturn]] void Fail(std::string_view what) const;

 private:
  std::span<const uint8_t> bytes_;
  uint64_t at_ = 0;
  const std::string* where_;
  uint64_t base_;
};

// Reads Thrift's compact protocol, version 1
// (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). Nesting is
// limited. Memory is that of the values which the caller keeps.
class ThriftReader {
 public:
  enum Type : uint8_t {
    kStop,
    kTrue,
    kFalse,
    kByte,
    kI16,
    kI32,
    kI64,
    kDouble,
    kBinary,
    kList,
    kSet,
    kMap,
    kStruct,
  };

  explicit ThriftReader(Cursor* cursor) : cursor_(cursor) {}

  // Reads a struct. `field(id, type)` reads the value with the functions below and returns true, or
  // returns false to skip it.
  template <typename Field>
  void Struct(Field&& field) {
    Enter();
    int64_t id = 0;
    Type type;
    while ((type = FieldHeader(&id)) != kStop) {
      if (!field(id, type)) Skip(type);
    }
    --depth_;
  }
  // The value of a field of this type. Throw for other types.
  int64_t Integer(Type type);
  bool Bool(Type type) const;
  std::string String(Type type);
  template <typename Field>
  void StructField(Type type, Field&& field) {
    Expect(type == kStruct, "a struct");
    Struct(field);
  }
  // Calls `element()` for each element of a list of structs.
  template <typename Element>
  void Structs(Type type, Element&& element) {
    Expect(type == kList, "a list");
    Type of;
    const uint64_t count = ListHeader(&of);
    Expect(of == kStruct || count == 0, "a list of structs");
    for (uint64_t i = 0; i < count; ++i) element();
  }

 private:
  void Enter();
  Type FieldHeader(int64_t* id);
  uint64_t ListHeader(Type* of);
  void Skip(Type type, bool is_element = false);
  void Expect(bool right, std::string_view what) const;

  Cursor* cursor_;
  int depth_ = 0;
};

}  // namespace switchyard::parquet
