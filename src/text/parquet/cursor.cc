#include "text/parquet/cursor.h"

#include <bit>

#include "core/error.h"

namespace switchyard::parquet {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read in place");

// Parquet's own structs nest to 6 levels.
constexpr int kMaxThriftDepth = 32;

}  // namespace

std::span<const uint8_t> Cursor::Take(uint64_t count, std::string_view what) {
  if (count > left()) {
    throw Invalid("{}: byte {}: {} of {} bytes does not fit into the {} bytes that are left",
                  *where_, base_ + at_, what, count, left());
  }
  const std::span<const uint8_t> taken = bytes_.subspan(at_, count);
  at_ += count;
  return taken;
}

uint64_t Cursor::Varint(std::string_view what) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = Read<uint8_t>(what);
    const uint64_t bits = byte & 0x7f;
    if (shift == 63 && bits > 1) break;
    value |= bits << shift;
    if ((byte & 0x80) == 0) return value;
  }
  throw Invalid("{}: byte {}: {} is a number of more than 64 bits", *where_, base_ + at_, what);
}

int64_t Cursor::ZigZag(std::string_view what) {
  const uint64_t value = Varint(what);
  return static_cast<int64_t>((value >> 1) ^ (0 - (value & 1)));
}

void Cursor::Fail(std::string_view what) const {
  throw Invalid("{}: byte {}: {}", *where_, base_ + at_, what);
}

void ThriftReader::Expect(bool right, std::string_view what) const {
  if (!right) throw Invalid("{}: a field is not {}", cursor_->where(), what);
}

void ThriftReader::Enter() {
  if (++depth_ > kMaxThriftDepth) cursor_->Fail("structs are nested too deeply");
}

ThriftReader::Type ThriftReader::FieldHeader(int64_t* id) {
  const auto header = cursor_->Read<uint8_t>("the header of a field");
  if (header == 0) return kStop;
  const int delta = header >> 4, type = header & 0xf;
  if (type == kStop || type > kStruct) cursor_->Fail("a field has an unknown type");
  if (delta != 0) {
    *id += delta;
  } else {
    *id = cursor_->ZigZag("the id of a field");
  }
  // Also keeps the sum of ids from overflowing.
  if (*id < 0 || *id > INT16_MAX) cursor_->Fail("the id of a field is out of range");
  return static_cast<Type>(type);
}

int64_t ThriftReader::Integer(Type type) {
  Expect(type >= kByte && type <= kI64, "an integer");
  if (type == kByte) return cursor_->Read<int8_t>("a byte");
  return cursor_->ZigZag("an integer");
}

bool ThriftReader::Bool(Type type) const {
  Expect(type == kTrue || type == kFalse, "a bool");
  return type == kTrue;
}

std::string ThriftReader::String(Type type) {
  Expect(type == kBinary, "a string");
  const auto bytes = cursor_->Take(cursor_->Varint("the length of a string"), "a string");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t ThriftReader::ListHeader(Type* of) {
  const auto header = cursor_->Read<uint8_t>("the header of a list");
  const uint64_t count =
      header >> 4 == 15 ? cursor_->Varint("the length of a list") : uint64_t{header} >> 4;
  // Each element takes a byte or more.
  if (count > cursor_->left()) cursor_->Fail("a list is longer than the bytes that are left");
  *of = static_cast<Type>(header & 0xf);
  return count;
}

void ThriftReader::Skip(Type type, bool is_element) {
  switch (type) {
    case kTrue:
    case kFalse:
      // The type of a field is its value; elements have a byte each.
      if (is_element) cursor_->Take(1, "a bool");
      return;
    case kByte:
      cursor_->Take(1, "a byte");
      return;
    case kI16:
    case kI32:
    case kI64:
      cursor_->Varint("an integer");
      return;
    case kDouble:
      cursor_->Take(8, "a double");
      return;
    case kBinary:
      cursor_->Take(cursor_->Varint("the length of a string"), "a string");
      return;
    case kList:
    case kSet: {
      Enter();
      Type of;
      const uint64_t count = ListHeader(&of);
      for (uint64_t i = 0; i < count; ++i) Skip(of, true);
      --depth_;
      return;
    }
    case kMap: {
      Enter();
      const uint64_t count = cursor_->Varint("the length of a map");
      if (count > cursor_->left()) cursor_->Fail("a map is longer than the bytes that are left");
      if (count > 0) {
        const auto types = cursor_->Read<uint8_t>("the types of a map");
        for (uint64_t i = 0; i < count; ++i) {
          Skip(static_cast<Type>(types >> 4), true);
          Skip(static_cast<Type>(types & 0xf), true);
        }
      }
      --depth_;
      return;
    }
    case kStruct:
      Struct([](int64_t, Type) { return false; });
      return;
    case kStop:
      break;
  }
  cursor_->Fail("a value has an unknown type");
}

}  // namespace switchyard::parquet
