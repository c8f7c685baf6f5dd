#include "eplb/array_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "core/error.h"
#include "eplb/torch_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr size_t kMaxDimensions = 4;
// Maximum length of a safetensors header; it distinguishes safetensors from text. The first eight
// bytes of a text file, read as a length, exceed this maximum, because text has no zero bytes.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

std::string ReadAll(std::ifstream& in) {
  in.seekg(0);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Shape of nested lists: the length of the list, the length of its first element, and so on.
std::vector<int64_t> ShapeOf(const json& lists, const std::string& where) {
  std::vector<int64_t> shape;
  for (const json* at = &lists; at->is_array(); at = &at->front()) {
    if (shape.size() == kMaxDimensions)
      throw Invalid("{}: lists are nested more than {} deep", where, kMaxDimensions);
    shape.push_back(std::ssize(*at));
    if (at->empty()) break;
  }
  return shape;
}

int32_t Int32Of(const json& value, const std::string& where) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kMost)) &&
      value.get<int64_t>() <= kMost && value.get<int64_t>() >= -kMost - 1;
  if (!fits) throw Invalid("{}: {} is not a 32-bit integer", where, DescribeValue(value));
  return value.get<int32_t>();
}

void Flatten(const json& value, size_t depth, const std::string& where, IntArray* array) {
  if (depth == array->shape.size()) return array->values.push_back(Int32Of(value, where));
  if (!value.is_array() || std::ssize(value) != array->shape[depth])
    throw Invalid("{}: lists of unequal length or depth; expected shape [{}]", where,
                  Joined(array->shape, ", "));
  for (const json& part : value) Flatten(part, depth + 1, where, array);
}

template <typename T>
std::vector<int32_t> Converted(const std::string& bytes, const std::string& where) {
  std::vector<T> stored(bytes.size() / sizeof(T));
  if (!stored.empty()) std::memcpy(stored.data(), bytes.data(), stored.size() * sizeof(T));
  for (const T value : stored)
    if (!std::in_range<int32_t>(value))
      throw Invalid("{}: {} is not a 32-bit integer", where, value);
  return {stored.begin(), stored.end()};
}

}  // namespace

// Does not use dump(), which is recursive: deeply nested lists would overflow the stack.
std::string DescribeValue(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 40);
}

ArrayFile::ArrayFile(const std::filesystem::path& path) : name_(path.string()) {
  std::error_code failed;
  const bool is_file = std::filesystem::is_regular_file(path, failed);
  std::ifstream in(path, std::ios::binary);
  if (!is_file || !in) throw NotFound("{}: no such file", name_);
  if (IsTorchFile(path)) {
    content_ = ReadTorchTensors(path, &scattered_);
    return;
  }
  const uint64_t size = std::filesystem::file_size(path);
  uint64_t length = kMaxHeaderBytes + 1;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  if (!in || length > kMaxHeaderBytes) {
    in.clear();
    ParseJson(ReadAll(in));
    return;
  }
  std::vector<uint8_t> head(std::min(size, sizeof length + length));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(head.data()), std::ssize(head));
  content_ = ParseSafetensorsHeader(head, size, name_);
}

ArrayFile::ArrayFile(const std::string& text, std::string name) : name_(std::move(name)) {
  ParseJson(text);
}

void ArrayFile::ParseJson(const std::string& text) {
  try {
    content_ = json::parse(text);
  } catch (const json::exception& error) {
    throw Invalid("{}: neither safetensors nor JSON: {}", name_, error.what());
  }
}

std::string ArrayFile::NamesOfArrays() const {
  constexpr size_t kMaxNames = 32;
  std::vector<std::string> names;
  if (const auto* tensors = std::get_if<TensorEntries>(&content_)) {
    for (const auto& [name, entry] : *tensors) names.push_back(name);
  } else if (json()->is_object()) {
    for (const auto& [name, value] : json()->items())
      if (value.is_array()) names.push_back(name);
  }
  if (names.empty()) return "the file has no arrays";
  const size_t left = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - left);
  const std::string list = "the file has " + Joined(names, ", ");
  return left > 0 ? fmt::format("{} and {} others", list, left) : list;
}

bool ArrayFile::Has(const std::string& array) const {
  if (const auto* tensors = std::get_if<TensorEntries>(&content_)) return tensors->contains(array);
  return json()->is_object() && json()->contains(array);
}

IntArray ArrayFile::Get(const std::string& array) const {
  if (scattered_.contains(array))
    throw Invalid("{}: {}: not contiguous; save tensor.contiguous()", name_, array);
  if (!Has(array)) throw Invalid("{}: no array named {}; {}", name_, array, NamesOfArrays());
  if (const auto* tensors = std::get_if<TensorEntries>(&content_))
    return GetTensor(array, tensors->find(array)->second);
  const std::string where = name_ + ": " + array;
  const nlohmann::json& lists = json()->at(array);
  if (!lists.is_array()) throw Invalid("{}: not a list", where);
  IntArray result{ShapeOf(lists, where), {}};
  Flatten(lists, 0, where, &result);
  return result;
}

IntArray ArrayFile::GetTensor(const std::string& array, const TensorEntry& entry) const {
  const std::string where = name_ + ": " + array;
  const bool whole =
      entry.dtype == DType::kI16 || entry.dtype == DType::kI32 || entry.dtype == DType::kI64;
  if (!whole)
    throw Invalid("{}: dtype is {}; want int16, int32 or int64", where, Name(entry.dtype));
  std::string bytes(entry.end - entry.begin, '\0');
  std::ifstream in(name_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(entry.begin));
  in.read(bytes.data(), std::ssize(bytes));
  if (!in) throw Invalid("{}: cannot be read", where);
  IntArray result{entry.shape, {}};
  result.values = entry.dtype == DType::kI16   ? Converted<int16_t>(bytes, where)
                  : entry.dtype == DType::kI32 ? Converted<int32_t>(bytes, where)
                                               : Converted<int64_t>(bytes, where);
  return result;
}

LoadHistory ReadLoads(const ArrayFile& file, const std::string& array) {
  IntArray counts = file.Get(array);
  if (counts.shape.size() == 2) counts.shape.insert(counts.shape.begin(), 1);
  const auto in_range = [](int64_t size) { return size > 0 && std::in_range<int>(size); };
  if (counts.shape.size() != 3 || !std::ranges::all_of(counts.shape, in_range))
    throw Invalid("{}: {} is [{}]; want counts [steps, layers, experts] or [layers, experts]",
                  file.name(), array, Joined(counts.shape, ", "));
  const auto negative =
      std::ranges::find_if(counts.values, [](int32_t count) { return count < 0; });
  if (negative != counts.values.end())
    throw Invalid("{}: {} has the negative count {}", file.name(), array, *negative);
  return {static_cast<int>(counts.shape[0]), static_cast<int>(counts.shape[1]),
          static_cast<int>(counts.shape[2]), std::move(counts.values)};
}

}  // namespace switchyard
