#include "core/gguf_files.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/regular_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".gguf";
constexpr size_t kNumberDigits = 5;
constexpr int kMaxSplits = 4096;

// Parts of a file name such as "NAME-00002-of-00003.gguf".
struct SplitName {
  std::string prefix;  // "NAME"
  int number = 0, count = 0;
};

std::optional<int> FiveDigits(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return text.size() == kNumberDigits && whole ? std::optional(value) : std::nullopt;
}

std::optional<SplitName> ParseSplitName(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kSuffix = 1 + kNumberDigits + kOf.size() + kNumberDigits;
  name.remove_suffix(kExtension.size());
  if (name.size() <= kSuffix) return std::nullopt;
  const std::string_view suffix = name.substr(name.size() - kSuffix);
  if (suffix[0] != '-' || suffix.substr(1 + kNumberDigits, kOf.size()) != kOf) return std::nullopt;
  const auto number = FiveDigits(suffix.substr(1, kNumberDigits));
  const auto count = FiveDigits(suffix.substr(kSuffix - kNumberDigits));
  if (!number || !count || *number < 1 || *number > *count || *count > kMaxSplits)
    return std::nullopt;
  return SplitName{std::string(name.substr(0, name.size() - kSuffix)), *number, *count};
}

std::string SplitFileName(const SplitName& name, int number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, number, name.count);
}

// The value of `key`; nullptr if the key is absent. Error kInvalid if the value is not of type T;
// `wanted` describes this type in the message.
template <typename T>
const T* ValueOf(const GgufMetadata& metadata, std::string_view file, std::string_view key,
                 std::string_view wanted) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) throw Invalid("{}: {} is not {}", file, key, wanted);
  return value;
}

void CheckSplit(const GgufMetadata& metadata, const std::string& file, size_t index, size_t count) {
  const auto read = [&](std::string_view key, int64_t absent) {
    const auto* value = ValueOf<int64_t>(metadata, file, key, "an integer");
    return value ? *value : absent;
  };
  // A file that is not split may have the split.* keys too, with a count of 0 or 1.
  const int64_t number = read("split.no", 0), of = std::max<int64_t>(read("split.count", 1), 1);
  if (number == static_cast<int64_t>(index) && of == static_cast<int64_t>(count)) return;
  throw Invalid("{}: is split {} of {} by its metadata; want split {} of {}", file, number + 1, of,
                index + 1, count);
}

bool IsGgufName(const fs::path& path) { return path.extension() == kExtension; }

std::optional<fs::path> FindInDirectory(const fs::path& dir) {
  std::error_code error;
  if (fs::exists(dir / "config.json", error)) return std::nullopt;
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!IsGgufName(name) || name.starts_with("mmproj")) continue;
    const auto split = ParseSplitName(name);
    if (split && split->number != 1) continue;
    models.push_back(name);
  }
  if (models.empty()) return std::nullopt;
  std::ranges::sort(models);
  if (models.size() > 1)
    throw Invalid("{}: has several GGUF models: {}; name one of the files", dir.string(),
                  Joined(models, ", "));
  return dir / models.front();
}

}  // namespace

std::optional<fs::path> FindGguf(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return FindInDirectory(path);
  return IsGgufName(path) ? std::optional(path) : std::nullopt;
}

std::vector<fs::path> GgufSplits(const fs::path& file) {
  const auto split =
      IsGgufName(file) ? ParseSplitName(file.filename().string()) : std::optional<SplitName>();
  if (!split) return {file};
  std::vector<fs::path> files;
  for (int i = 1; i <= split->count; ++i)
    files.push_back(file.parent_path() / SplitFileName(*split, i));
  return files;
}

GgufFiles::GgufFiles(const fs::path& file) {
  const std::vector<fs::path> splits = GgufSplits(file);
  for (size_t i = 0; i < splits.size(); ++i) {
    const auto map = MapFile(RegularFile(splits[i]));
    GgufHeader header = ParseGgufHeader({map->data, map->size}, map->name);
    CheckSplit(header.metadata, map->name, i, splits.size());
    if (i == 0) {
      name_ = map->name;
      metadata_ = std::move(header.metadata);
    }
    for (auto& [name, tensor] : header.tensors) {
      Tensor stored{.type = tensor.type,
                    .shape = std::move(tensor.shape),
                    .data = map->data + tensor.begin,
                    .file = map};
      const auto [it, added] = tensors_.try_emplace(name, std::move(stored));
      if (!added)
        throw Invalid("tensor \"{}\" is in {} and in {}", name, it->second.file->name, map->name);
    }
    if (tensors_.size() > kMaxGgufTensors)
      throw Invalid("{}: more than {} tensors in all files", name_, kMaxGgufTensors);
  }
  const auto all = Int("split.tensors.count");
  if (splits.size() > 1 && all && *all != static_cast<int64_t>(tensors_.size()))
    throw Invalid("{}: its splits have {} tensors; split.tensors.count is {}", name_,
                  tensors_.size(), *all);
}

const GgufFiles::Tensor* GgufFiles::Find(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second;
}

template <typename T>
const T* GgufFiles::Get(std::string_view key, std::string_view wanted) const {
  return ValueOf<T>(metadata_, name_, key, wanted);
}

std::optional<int64_t> GgufFiles::Int(std::string_view key) const {
  const auto* value = Get<int64_t>(key, "an integer");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> GgufFiles::Number(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found != metadata_.end() && std::holds_alternative<int64_t>(found->second))
    return static_cast<double>(std::get<int64_t>(found->second));
  const auto* value = Get<double>(key, "a number");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<bool> GgufFiles::Bool(std::string_view key) const {
  const auto* value = Get<bool>(key, "true or false");
  return value ? std::optional(*value) : std::nullopt;
}

const std::string* GgufFiles::String(std::string_view key) const {
  return Get<std::string>(key, "a string");
}
const std::vector<std::string>* GgufFiles::Strings(std::string_view key) const {
  return Get<std::vector<std::string>>(key, "an array of strings");
}
const std::vector<int64_t>* GgufFiles::Ints(std::string_view key) const {
  return Get<std::vector<int64_t>>(key, "an array of integers");
}
const std::vector<double>* GgufFiles::Numbers(std::string_view key) const {
  return Get<std::vector<double>>(key, "an array of numbers");
}

}  // namespace switchyard
