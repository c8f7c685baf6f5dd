#include "core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are used in place");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format
constexpr size_t kMaxRank = 16;

// Parses the header and rejects duplicate names, of which the JSON library would silently keep one.
json ParseObject(std::string_view text, const std::string& file) {
  std::set<std::string> names;
  const auto refuse_duplicates = [&](int depth, json::parse_event_t event, json& key) {
    if (depth == 1 && event == json::parse_event_t::key &&
        !names.insert(key.get<std::string>()).second) {
      throw Invalid("{}: tensor \"{}\" appears twice in the header", file, key.get<std::string>());
    }
    return true;
  };
  try {
    json header = json::parse(text, refuse_duplicates);
    if (!header.is_object()) throw Invalid("{}: the header is not a JSON object", file);
    return header;
  } catch (const json::exception& e) {
    throw Invalid("{}: the header is not JSON: {}", file, e.what());
  }
}

std::optional<std::vector<uint64_t>> UnsignedList(const json& entry, const char* key) {
  const auto it = entry.find(key);
  if (it == entry.end() || !it->is_array()) return std::nullopt;
  std::vector<uint64_t> out;
  for (const json& item : *it) {
    if (!item.is_number_unsigned()) return std::nullopt;
    out.push_back(item.get<uint64_t>());
  }
  return out;
}

// Bytes of a tensor; nullopt on overflow.
std::optional<uint64_t> BytesOf(DType dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = SizeOf(dtype);
  for (uint64_t d : shape) {
    if (d > uint64_t{INT64_MAX} || __builtin_mul_overflow(bytes, d, &bytes)) return std::nullopt;
  }
  return bytes;
}

TensorEntry ParseEntry(const json& entry, uint64_t data_begin, uint64_t data_bytes,
                       const std::string& where) {
  if (!entry.is_object()) throw Invalid("{}: the entry is not a JSON object", where);
  const auto dtype_name = entry.find("dtype");
  if (dtype_name == entry.end() || !dtype_name->is_string()) {
    throw Invalid("{}: dtype is missing", where);
  }
  const auto dtype = ParseSafetensorsDType(dtype_name->get_ref<const std::string&>());
  if (!dtype) {
    throw Invalid("{}: unknown dtype {}", where,
                  dtype_name->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 40));
  }
  const auto shape = UnsignedList(entry, "shape");
  if (!shape || shape->size() > kMaxRank) {
    throw Invalid("{}: shape is missing or not a list of sizes", where);
  }
  const auto offsets = UnsignedList(entry, "data_offsets");
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    throw Invalid("{}: data_offsets is missing or not an ascending pair", where);
  }
  const uint64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (end > data_bytes) {
    throw Invalid("{}: ends at data byte {}, but the file has {} data bytes; it is truncated",
                  where, end, data_bytes);
  }
  const auto bytes = BytesOf(*dtype, *shape);
  if (bytes != end - begin) {
    throw Invalid("{}: {} of [{}] does not fill its {} bytes", where, Name(*dtype),
                  Joined(*shape, ", "), end - begin);
  }
  return {*dtype, {shape->begin(), shape->end()}, data_begin + begin, data_begin + end};
}

void CheckNoOverlaps(const TensorEntries& entries, const std::string& file) {
  std::vector<const TensorEntries::value_type*> by_begin;
  for (const auto& entry : entries) {
    if (entry.second.begin != entry.second.end) by_begin.push_back(&entry);
  }
  std::ranges::sort(by_begin, {}, [](const auto* e) { return e->second.begin; });
  for (size_t i = 1; i < by_begin.size(); ++i) {
    if (by_begin[i]->second.begin < by_begin[i - 1]->second.end) {
      throw Invalid("{}: tensors \"{}\" and \"{}\" overlap", file, by_begin[i - 1]->first,
                    by_begin[i]->first);
    }
  }
}

}  // namespace

TensorEntries ParseSafetensorsHeader(std::span<const uint8_t> head, uint64_t file_size,
                                     const std::string& file) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    throw Invalid("{}: {} bytes are too few for a safetensors file; it is truncated", file,
                  file_size);
  }
  uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    throw Invalid("{}: header length {} is over {}; this is not a safetensors file", file, length,
                  kMaxHeaderBytes);
  }
  if (length > file_size - kLengthBytes || length > head.size() - kLengthBytes) {
    throw Invalid("{}: header length {} exceeds the file's {} bytes; it is truncated", file, length,
                  file_size);
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  const json header = ParseObject(text, file);
  const uint64_t data_begin = kLengthBytes + length;

  TensorEntries entries;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    entries.emplace(name, ParseEntry(entry, data_begin, file_size - data_begin,
                                     fmt::format("{}: tensor \"{}\"", file, name)));
  }
  CheckNoOverlaps(entries, file);
  return entries;
}

}  // namespace switchyard
