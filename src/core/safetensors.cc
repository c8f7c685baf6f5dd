#include "core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"

namespace switchyard {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used in place");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format
constexpr size_t kMaxRank = 16;

// Bytes of a tensor; nullopt on overflow.
std::optional<uint64_t> BytesOf(DType dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = SizeOf(dtype);
  for (uint64_t d : shape) {
    if (d > uint64_t{INT64_MAX} || __builtin_mul_overflow(bytes, d, &bytes)) return std::nullopt;
  }
  return bytes;
}

// One entry of the header while it is parsed. A member of a wrong type counts as missing.
struct RawEntry {
  std::optional<DType> dtype;
  std::optional<std::string> unknown_dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

TensorEntry CheckEntry(const RawEntry& entry, uint64_t data_begin, uint64_t data_bytes,
                       const std::string& where) {
  if (entry.unknown_dtype) {
    throw Invalid("{}: unknown dtype \"{}\"", where, entry.unknown_dtype->substr(0, 40));
  }
  if (!entry.dtype) throw Invalid("{}: dtype is missing", where);
  if (!entry.shape || entry.shape->size() > kMaxRank) {
    throw Invalid("{}: shape is missing or not a list of sizes", where);
  }
  const auto& offsets = entry.offsets;
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    throw Invalid("{}: data_offsets is missing or not an ascending pair", where);
  }
  const uint64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (end > data_bytes) {
    throw Invalid("{}: ends at data byte {}, but the file has {} data bytes; it is truncated",
                  where, end, data_bytes);
  }
  const auto bytes = BytesOf(*entry.dtype, *entry.shape);
  if (bytes != end - begin) {
    throw Invalid("{}: {} with shape [{}] does not fill its {} bytes", where, Name(*entry.dtype),
                  Joined(*entry.shape, ", "), end - begin);
  }
  return {*entry.dtype,
          {entry.shape->begin(), entry.shape->end()},
          data_begin + begin,
          data_begin + end};
}

// Collects the entries of a header during parsing. Skips __metadata__ and unknown members of
// entries.
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(const std::string& file, const std::string& name, uint64_t data_begin,
               uint64_t data_bytes, size_t max_tensors)
      : JsonEvents(name, kMaxDepth),
        file_(file),
        data_begin_(data_begin),
        data_bytes_(data_bytes),
        max_tensors_(max_tensors) {}

  TensorEntries Take() && { return std::move(entries_); }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(int64_t) override { return Scalar(); }
  bool number_float(double, const std::string&) override { return Scalar(); }
  bool number_unsigned(uint64_t value) override {
    if (!list_ || depth() != kListDepth) return Scalar();
    // Stores at most kMaxRank + 1 numbers; CheckEntry rejects a list of that length.
    if (list_->size() <= kMaxRank) list_->push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (skipping_ || depth() != kEntryDepth || member_ != Member::kDtype) return Scalar();
    entry_.dtype = ParseSafetensorsDType(value);
    if (!entry_.dtype) entry_.unknown_dtype = value;
    return true;
  }
  bool start_object(size_t) override {
    if (depth() == kHeaderDepth && !skipping_) entry_ = {};
    return Scalar(/*may_be_entry=*/true) && Enter();
  }
  bool end_object() override {
    Leave();
    if (depth() == kHeaderDepth && !skipping_) AddEntry();
    return true;
  }
  bool start_array(size_t) override {
    if (depth() == kEntryDepth && !skipping_ && member_ == Member::kShape)
      list_ = &entry_.shape.emplace();
    else if (depth() == kEntryDepth && !skipping_ && member_ == Member::kOffsets)
      list_ = &entry_.offsets.emplace();
    else
      Scalar();
    return Enter();
  }
  bool end_array() override {
    Leave();
    if (depth() == kEntryDepth) list_ = nullptr;
    return true;
  }
  bool key(std::string& name) override {
    if (depth() == kHeaderDepth) {
      TakeName(name);
    } else if (depth() == kEntryDepth && !skipping_) {
      TakeMember(name);
    }
    return true;
  }

 private:
  enum class Member { kOther, kDtype, kShape, kOffsets };
  // depth() at a tensor's name, at a member of the tensor's entry, and at a number in one of the
  // entry's lists.
  static constexpr int kHeaderDepth = 1, kEntryDepth = 2, kListDepth = 3;
  static constexpr int kMaxDepth = 64;

  std::string Where() const { return fmt::format("{}: tensor \"{}\"", file_, tensor_); }

  void TakeName(std::string& name) {
    skipping_ = name == "__metadata__";
    if (skipping_ ? std::exchange(has_metadata_, true) : entries_.contains(name)) {
      throw Invalid("{}: tensor \"{}\" appears twice in the header", file_, name);
    }
    tensor_ = std::move(name);
  }

  void TakeMember(const std::string& name) {
    member_ = name == "dtype"          ? Member::kDtype
              : name == "shape"        ? Member::kShape
              : name == "data_offsets" ? Member::kOffsets
                                       : Member::kOther;
    const bool twice = (member_ == Member::kDtype && (entry_.dtype || entry_.unknown_dtype)) ||
                       (member_ == Member::kShape && entry_.shape) ||
                       (member_ == Member::kOffsets && entry_.offsets);
    if (twice) throw Invalid("{}: {} appears twice", Where(), name);
  }

  // Handles a value of any type that is not stored. It is an error if the header, an entry or a
  // number of a list should be at this position.
  bool Scalar(bool may_be_entry = false) {
    if (depth() == 0 && !may_be_entry) throw Invalid("{}: the header is not a JSON object", file_);
    if (skipping_) return true;
    if (depth() == kHeaderDepth && !may_be_entry) {
      throw Invalid("{}: the entry is not a JSON object", Where());
    }
    if (list_ && depth() == kListDepth) {
      throw Invalid("{}: {} is not a list of sizes", Where(),
                    member_ == Member::kShape ? "shape" : "data_offsets");
    }
    return true;
  }

  void AddEntry() {
    if (entries_.size() >= max_tensors_) {
      throw Invalid("{}: has more than {} tensors", file_, max_tensors_);
    }
    TensorEntry entry = CheckEntry(entry_, data_begin_, data_bytes_, Where());
    entries_.emplace(std::move(tensor_), std::move(entry));
  }

  const std::string& file_;
  const uint64_t data_begin_, data_bytes_;
  const size_t max_tensors_;
  TensorEntries entries_;
  std::string tensor_;
  RawEntry entry_;
  Member member_ = Member::kOther;
  std::vector<uint64_t>* list_ = nullptr;  // the list of entry_ that is being read, or null
  bool skipping_ = false;                  // inside the value of __metadata__
  bool has_metadata_ = false;
};

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
                                     const std::string& file, size_t max_tensors) {
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
  const std::string name = file + ": the header";
  const uint64_t data_begin = kLengthBytes + length;
  HeaderReader reader(file, name, data_begin, file_size - data_begin, max_tensors);
  ParseJsonEvents(text, &reader);
  TensorEntries entries = std::move(reader).Take();
  CheckNoOverlaps(entries, file);
  return entries;
}

}  // namespace switchyard
