#include "engine/speculative/token_map.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <string_view>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/regular_file.h"
#include "core/safetensors.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxBytes = 32 << 20;  // ids of 2 million tokens, of at most 16 bytes each
constexpr std::string_view kSpace = " \t\r\n";

// An id before its range is checked.
using Ids = std::vector<int64_t>;

std::string Extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

bool IsTorchName(std::string_view extension) {
  return extension == ".pt" || extension == ".pth" || extension == ".bin";
}

Ids IdsOfJson(std::string_view text, const std::string& where) {
  const nlohmann::json list = ParseBoundedJson(text, where, {.depth = 2, .values = kMaxBytes / 2});
  if (!list.is_array()) throw Invalid("{}: want a list of token ids, such as [5, 17, 3]", where);
  Ids ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer())
      throw Invalid("{}: element {} is {}; want a token id", where, ids.size(), id.dump());
    // A larger unsigned number becomes negative, so it is out of range too.
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

Ids IdsOfText(std::string_view text, const std::string& where) {
  Ids ids;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int64_t id = 0;
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || last != word.data() + word.size())
      throw Invalid(
          "{}: entry {} is not a token id; want a JSON list, a safetensors file, or text with "
          "token ids between white space",
          where, ids.size());
    ids.push_back(id);
    at = text.find_first_not_of(kSpace, end);
  }
  return ids;
}

Ids IdsOfSafetensors(std::string_view bytes, const std::string& where) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  const TensorEntries tensors = ParseSafetensorsHeader({data, bytes.size()}, bytes.size(), where);
  if (tensors.size() != 1) throw Invalid("{}: has {} tensors; want one", where, tensors.size());
  const auto& [name, entry] = *tensors.begin();
  const bool integers = entry.dtype == DType::kI64 || entry.dtype == DType::kI32;
  if (!integers || entry.shape.size() != 1)
    throw Invalid("{}: tensor \"{}\" is {} [{}]; want int64 or int32 [tokens]", where, name,
                  Name(entry.dtype), Joined(entry.shape, ", "));
  Ids ids(static_cast<size_t>(entry.shape[0]));
  for (size_t i = 0; i < ids.size(); ++i) {
    int32_t narrow = 0;
    if (entry.dtype == DType::kI64) {
      std::memcpy(&ids[i], data + entry.begin + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      std::memcpy(&narrow, data + entry.begin + i * sizeof narrow, sizeof narrow);
      ids[i] = narrow;
    }
  }
  return ids;
}

Ids IdsOfFile(const std::filesystem::path& path, const std::string& where) {
  const std::string extension = Extension(path);
  std::string bytes;
  try {
    bytes = ReadRegularFile(path, kMaxBytes);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("--speculative-token-map: {}", error.what()));
  }
  if (IsTorchName(extension) || bytes.starts_with("PK\x03\x04"))
    throw Invalid(
        "{}: PyTorch files are not read; convert it with python3 -c \"import json, torch; "
        "json.dump(torch.as_tensor(torch.load('{}')).tolist(), open('tokens.json', 'w'))\" and "
        "give tokens.json",
        where, path.string());
  if (extension == ".safetensors") return IdsOfSafetensors(bytes, where);
  const size_t first = bytes.find_first_not_of(kSpace);
  const bool json = extension == ".json" ||
                    (first != std::string::npos && (bytes[first] == '[' || bytes[first] == '{'));
  return json ? IdsOfJson(bytes, where) : IdsOfText(bytes, where);
}

}  // namespace

std::vector<int32_t> ReadTokenMap(const std::filesystem::path& path, int64_t vocab_size) {
  const std::string where = fmt::format("--speculative-token-map {}", path.string());
  const Ids ids = IdsOfFile(path, where);
  if (ids.empty()) throw Invalid("{}: has no token ids", where);
  std::vector<int32_t> tokens;
  tokens.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size)
      throw Invalid("{}: entry {} is {}; want tokens of the model, 0 to {}", where, i, ids[i],
                    vocab_size - 1);
    tokens.push_back(static_cast<int32_t>(ids[i]));
  }
  std::ranges::sort(tokens);
  const auto twice = std::ranges::adjacent_find(tokens);
  if (twice != tokens.end()) throw Invalid("{}: token {} occurs more than once", where, *twice);
  return tokens;
}

void WriteTokenMap(const std::filesystem::path& path, std::span<const int32_t> tokens) {
  const std::string extension = Extension(path);
  if (IsTorchName(extension) || extension == ".safetensors")
    throw Invalid("{}: token maps are written as .json or as text (.txt)", path.string());
  const bool json = extension == ".json";
  WriteWholeFile(path,
                 json ? fmt::format("[{}]\n", Joined(tokens, ", ")) : Joined(tokens, "\n") + "\n");
}

uint64_t HashOfTokens(std::span<const int32_t> tokens) {
  return HashOf({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace switchyard
