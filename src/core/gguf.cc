#include "core/gguf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read in place");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 1 << 16;
constexpr uint32_t kMaxDimensions = 4;
// Largest vocabularies have 300,000 tokens: texts, scores, types and merges.
constexpr uint64_t kMaxArrayElements = 1 << 24;
constexpr uint64_t kMaxNameBytes = 1 << 16;  // maximum length of a key or tensor name

// Minimum bytes of an entry in the header: a metadata key of length 0 with a value of one byte, and
// a tensor info without dimensions.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1, kMinTensorBytes = 8 + 4 + 4 + 8;

constexpr GgmlType kTypes[] = {
    {kGgmlF32, "F32", 1, 4},
    {kGgmlF16, "F16", 1, 2},
    {kGgmlQ4_0, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},
    {kGgmlQ8_0, "Q8_0", 32, 34},
    {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},
    {kGgmlQ4_K, "Q4_K", 256, 144},
    {kGgmlQ5_K, "Q5_K", 256, 176},
    {kGgmlQ6_K, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {kGgmlIQ4_XS, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {kGgmlBF16, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
    {kGgmlMXFP4, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},
};

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kNumValueTypes
};

// Bytes of a value of each type. For a string: the bytes of its length field.
constexpr uint64_t kValueBytes[kNumValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

double ShortestDecimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double result = 0;
  if (!std::isfinite(value)) return value;
  std::from_chars(text, end, result);
  return result;
}

class HeaderParser {
 public:
  HeaderParser(std::span<const uint8_t> file, const std::string& name) : file_(file), name_(name) {}

  GgufHeader Parse() && {
    ReadVersion();
    const auto tensors = Read<uint64_t>("the number of tensors");
    const auto keys = Read<uint64_t>("the number of metadata keys");
    CheckCount(keys, kMinKeyBytes, "metadata keys");
    for (uint64_t i = 0; i < keys; ++i) ReadKey();
    CheckCount(tensors, kMinTensorBytes, "tensors");
    if (tensors > kMaxGgufTensors)
      throw Invalid("{}: has {} tensors, at most {} are allowed", name_, tensors, kMaxGgufTensors);
    const uint64_t alignment = Alignment();
    for (uint64_t i = 0; i < tensors; ++i) ReadTensor(alignment);
    PlaceTensors(alignment);
    return std::move(header_);
  }

 private:
  uint64_t left() const { return file_.size() - at_; }

  const uint8_t* Take(uint64_t bytes, std::string_view what) {
    if (bytes > left())
      throw Invalid("{}: ends within {}, at byte {}; it is truncated", name_, what, file_.size());
    const uint8_t* data = file_.data() + at_;
    at_ += bytes;
    return data;
  }
  template <typename T>
  T Read(std::string_view what) {
    T value;
    std::memcpy(&value, Take(sizeof value, what), sizeof value);
    return value;
  }
  std::string ReadString(std::string_view what, uint64_t max_bytes) {
    const auto length = Read<uint64_t>(what);
    if (length > left() || length > max_bytes)
      throw Invalid("{}: {} has a length of {} bytes, and the file has {} left; it is damaged",
                    name_, what, length, left());
    return {reinterpret_cast<const char*>(Take(length, what)), static_cast<size_t>(length)};
  }

  void ReadVersion() {
    if (Read<uint32_t>("the magic number") != kMagic)
      throw Invalid("{}: does not begin with \"GGUF\"; this is not a GGUF file", name_);
    const auto version = Read<uint32_t>("the version");
    const uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= kOldestVersion && swapped <= kNewestVersion)
      throw Invalid("{}: is big-endian; want a little-endian GGUF file", name_);
    if (version < kOldestVersion || version > kNewestVersion)
      throw Invalid("{}: is GGUF version {}; want version {} or {}", name_, version, kOldestVersion,
                    kNewestVersion);
  }

  void CheckCount(uint64_t count, uint64_t min_bytes, std::string_view what) {
    if (count > left() / min_bytes)
      throw Invalid("{}: claims {} {}, but has only {} bytes left; it is truncated or damaged",
                    name_, count, what, left());
  }

  void ReadKey() {
    std::string key = ReadString("a metadata key", kMaxNameBytes);
    const std::string what = fmt::format("the metadata key {}", key);
    const auto type = Read<uint32_t>(what);
    GgufValue value = type == kArray ? ReadArray(what) : ReadValue(type, what);
    if (!header_.metadata.emplace(std::move(key), std::move(value)).second)
      throw Invalid("{}: {} appears twice", name_, what);
  }

  GgufValue ReadValue(uint32_t type, const std::string& what) {
    switch (type) {
      case kFloat32:
        return ShortestDecimal(Read<float>(what));
      case kFloat64:
        return Read<double>(what);
      case kBool:
        return Read<uint8_t>(what) != 0;
      case kString:
        return ReadString(what, file_.size());
      default:
        return ReadInteger(type, what);
    }
  }

  int64_t ReadInteger(uint32_t type, const std::string& what) {
    switch (type) {
      case kUint8:
        return Read<uint8_t>(what);
      case kInt8:
        return Read<int8_t>(what);
      case kUint16:
        return Read<uint16_t>(what);
      case kInt16:
        return Read<int16_t>(what);
      case kUint32:
        return Read<uint32_t>(what);
      case kInt32:
        return Read<int32_t>(what);
      case kInt64:
        return Read<int64_t>(what);
      case kUint64: {
        const auto value = Read<uint64_t>(what);
        if (value > uint64_t{INT64_MAX})
          throw Invalid("{}: {} is {}; want at most {}", name_, what, value, INT64_MAX);
        return static_cast<int64_t>(value);
      }
      default:
        throw Invalid("{}: {} has the unknown type {}", name_, what, type);
    }
  }

  GgufValue ReadArray(const std::string& what) {
    const auto type = Read<uint32_t>(what);
    const auto count = Read<uint64_t>(what);
    if (type == kArray) throw Invalid("{}: {} is an array of arrays", name_, what);
    if (type >= kNumValueTypes)
      throw Invalid("{}: {} has elements of the unknown type {}", name_, what, type);
    if (count > left() / kValueBytes[type])
      throw Invalid("{}: {} claims {} elements, but only {} bytes are left; it is truncated", name_,
                    what, count, left());
    elements_ += count;
    if (elements_ > kMaxArrayElements)
      throw Invalid("{}: the metadata has over {} array elements", name_, kMaxArrayElements);
    const auto fill = [&](auto list, auto read) -> GgufValue {
      list.reserve(count);
      for (uint64_t i = 0; i < count; ++i) list.push_back(read());
      return list;
    };
    if (type == kString)
      return fill(std::vector<std::string>(), [&] { return ReadString(what, file_.size()); });
    if (type == kFloat32)
      return fill(std::vector<double>(), [&] { return double{Read<float>(what)}; });
    if (type == kFloat64) return fill(std::vector<double>(), [&] { return Read<double>(what); });
    if (type == kBool)
      return fill(std::vector<int64_t>(), [&] { return int64_t{Read<uint8_t>(what) != 0}; });
    return fill(std::vector<int64_t>(), [&] { return ReadInteger(type, what); });
  }

  uint64_t Alignment() const {
    const auto found = header_.metadata.find("general.alignment");
    if (found == header_.metadata.end()) return kDefaultAlignment;
    const int64_t* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 1 || *value > static_cast<int64_t>(kMaxAlignment) ||
        !std::has_single_bit(static_cast<uint64_t>(*value)))
      throw Invalid("{}: general.alignment is not a power of two up to {}", name_, kMaxAlignment);
    return static_cast<uint64_t>(*value);
  }

  // Until PlaceTensors runs, `begin` of the entry holds the offset in the data section, and `end`
  // the size in bytes.
  void ReadTensor(uint64_t alignment) {
    std::string tensor = ReadString("a tensor name", kMaxNameBytes);
    const std::string what = fmt::format("tensor \"{}\"", tensor);
    const auto dimensions = Read<uint32_t>(what);
    if (dimensions < 1 || dimensions > kMaxDimensions)
      throw Invalid("{}: {} has {} dimensions; want 1 to {}", name_, what, dimensions,
                    kMaxDimensions);
    GgufTensor out;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto size = Read<uint64_t>(what);
      if (size == 0 || size > uint64_t{INT64_MAX} ||
          __builtin_mul_overflow(elements, size, &elements))
        throw Invalid("{}: {} has a dimension of {} elements", name_, what, size);
      out.shape.insert(out.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = Read<uint32_t>(what);
    out.type = FindGgmlType(type);
    if (out.type == nullptr) throw Invalid("{}: {} has the unknown type {}", name_, what, type);
    const auto block = static_cast<uint64_t>(out.type->block_size);
    if (static_cast<uint64_t>(out.shape.back()) % block != 0)
      throw Invalid("{}: {} has rows of {} elements; {} needs a multiple of {}", name_, what,
                    out.shape.back(), out.type->name, block);
    uint64_t bytes = elements / block;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(out.type->block_bytes), &bytes))
      throw Invalid("{}: {} has {} elements", name_, what, elements);
    out.begin = Read<uint64_t>(what);
    out.end = bytes;
    if (out.begin % alignment != 0)
      throw Invalid("{}: {} is at data byte {}, not a multiple of the alignment {}", name_, what,
                    out.begin, alignment);
    if (!header_.tensors.emplace(std::move(tensor), std::move(out)).second)
      throw Invalid("{}: {} appears twice", name_, what);
  }

  void PlaceTensors(uint64_t alignment) {
    if (header_.tensors.empty()) return;
    const uint64_t data = (at_ + alignment - 1) / alignment * alignment;
    const uint64_t data_bytes = file_.size() - std::min<uint64_t>(data, file_.size());
    std::vector<std::pair<const std::string, GgufTensor>*> by_begin;
    for (auto& entry : header_.tensors) {
      GgufTensor& tensor = entry.second;
      const uint64_t bytes = tensor.end;
      if (tensor.begin > data_bytes || bytes > data_bytes - tensor.begin)
        throw Invalid(
            "{}: tensor \"{}\" has {} bytes at data byte {}, but the file has {} data bytes; it is "
            "truncated",
            name_, entry.first, bytes, tensor.begin, data_bytes);
      tensor.begin += data;
      tensor.end = tensor.begin + bytes;
      by_begin.push_back(&entry);
    }
    std::ranges::sort(by_begin, {}, [](const auto* e) { return e->second.begin; });
    for (size_t i = 1; i < by_begin.size(); ++i) {
      if (by_begin[i]->second.begin < by_begin[i - 1]->second.end)
        throw Invalid("{}: tensors \"{}\" and \"{}\" overlap", name_, by_begin[i - 1]->first,
                      by_begin[i]->first);
    }
  }

  const std::span<const uint8_t> file_;
  const std::string& name_;
  uint64_t at_ = 0;
  uint64_t elements_ = 0;  // elements of all arrays so far
  GgufHeader header_;
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  const auto found = std::ranges::find(kTypes, id, &GgmlType::id);
  return found == std::end(kTypes) ? nullptr : found;
}

GgufHeader ParseGgufHeader(std::span<const uint8_t> file, const std::string& name) {
  return HeaderParser(file, name).Parse();
}

}  // namespace switchyard
