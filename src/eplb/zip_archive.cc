// Format: PKWARE's APPNOTE, https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "eplb/torch_file.h"

namespace switchyard {
namespace {

constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr size_t kRecordBytes = 46, kHeaderBytes = 30;
constexpr uint64_t kMaxEntries = 1 << 20;
// Value of a 32-bit field whose real value is in the 64-bit extra field.
constexpr uint32_t kIn64 = 0xffffffff;

// The little-endian number at byte `at`. Precondition: the number lies inside the bytes.
template <typename T>
T Number(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Returns the part of an extra field that holds the 64-bit values. It has one value for each field
// of the record that is kIn64, in the order of the record.
std::string Extra64(const std::string& extra) {
  size_t at = 0;
  while (at + 4 <= extra.size()) {
    const size_t size = Number<uint16_t>(extra, at + 2);
    if (Number<uint16_t>(extra, at) == 1) return extra.substr(at + 4, size);
    at += 4 + size;
  }
  return {};
}

}  // namespace

ZipArchive::ZipArchive(const std::filesystem::path& path)
    : name_(path.string()), in_(path, std::ios::binary), size_(std::filesystem::file_size(path)) {
  constexpr uint64_t kMaxComment = 65535;
  const uint64_t tail_size = std::min<uint64_t>(size_, kEndBytes + kMaxComment);
  const std::string tail = Bytes(size_ - tail_size, tail_size);
  const size_t end = tail.rfind("PK\5\6");
  if (end == std::string::npos || end + kEndBytes > tail.size())
    throw Invalid("{}: a ZIP archive without a directory; is it truncated?", name_);
  uint64_t entries = Number<uint16_t>(tail, end + 10);
  uint64_t size = Number<uint32_t>(tail, end + 12);
  uint64_t begin = Number<uint32_t>(tail, end + 16);
  const bool in_64 = entries == 0xffff || size == kIn64 || begin == kIn64;
  if (in_64 && end >= kLocatorBytes && tail.compare(end - kLocatorBytes, 4, "PK\6\7") == 0) {
    const std::string end64 = Bytes(Number<uint64_t>(tail, end - kLocatorBytes + 8), kEnd64Bytes);
    entries = Number<uint64_t>(end64, 32);
    size = Number<uint64_t>(end64, 40);
    begin = Number<uint64_t>(end64, 48);
  }
  ReadDirectory(begin, size, entries);
}

void ZipArchive::ReadDirectory(uint64_t begin, uint64_t size, uint64_t entries) {
  if (entries > kMaxEntries) throw Invalid("{}: a ZIP archive of {} entries", name_, entries);
  const std::string directory = Bytes(begin, size);
  size_t at = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    if (at + kRecordBytes > directory.size() || directory.compare(at, 4, "PK\1\2") != 0)
      throw Invalid("{}: the archive's directory is damaged", name_);
    const size_t name = Number<uint16_t>(directory, at + 28);
    const size_t extra = Number<uint16_t>(directory, at + 30);
    const size_t comment = Number<uint16_t>(directory, at + 32);
    if (at + kRecordBytes + name + extra + comment > directory.size())
      throw Invalid("{}: the archive's directory is damaged", name_);
    Record record{.method = Number<uint16_t>(directory, at + 10),
                  .header = Number<uint32_t>(directory, at + 42),
                  .stored = Number<uint32_t>(directory, at + 20)};
    const std::string wide = Extra64(directory.substr(at + kRecordBytes + name, extra));
    // The extra field has the uncompressed size first, if that size did not fit in 32 bits.
    size_t next = Number<uint32_t>(directory, at + 24) == kIn64 ? 8 : 0;
    for (uint64_t* value : {&record.stored, &record.header}) {
      if (*value != kIn64) continue;
      if (next + 8 > wide.size()) throw Invalid("{}: the archive's directory is damaged", name_);
      *value = Number<uint64_t>(wide, next);
      next += 8;
    }
    records_[directory.substr(at + kRecordBytes, name)] = record;
    at += kRecordBytes + name + extra + comment;
  }
}

std::string ZipArchive::Bytes(uint64_t begin, uint64_t size) const {
  if (begin > size_ || size > size_ - begin)
    throw Invalid("{}: the archive refers to bytes past its end; is it truncated?", name_);
  std::string bytes(size, '\0');
  in_.clear();
  in_.seekg(static_cast<std::streamoff>(begin));
  in_.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!in_) throw Invalid("{}: cannot be read", name_);
  return bytes;
}

ZipArchive::Entry ZipArchive::Find(const std::string& entry) const {
  const auto record = records_.find(entry);
  if (record == records_.end()) throw Invalid("{}: the archive lacks {}", name_, entry);
  if (record->second.method != 0) throw Invalid("{}: {} is compressed", name_, entry);
  const uint64_t header = record->second.header;
  const std::string local = Bytes(header, kHeaderBytes);
  if (local.compare(0, 4, "PK\3\4") != 0) throw Invalid("{}: {} is damaged", name_, entry);
  const uint64_t begin =
      header + kHeaderBytes + Number<uint16_t>(local, 26) + Number<uint16_t>(local, 28);
  const uint64_t size = record->second.stored;
  if (begin > size_ || size > size_ - begin)
    throw Invalid("{}: {} ends after the file; is it truncated?", name_, entry);
  return {begin, size};
}

std::string ZipArchive::Read(const std::string& entry, uint64_t most) const {
  const Entry found = Find(entry);
  if (found.size > most) throw Invalid("{}: {} has {} bytes", name_, entry, found.size);
  return Bytes(found.begin, found.size);
}

std::string ZipArchive::NameEndingWith(const std::string& ending) const {
  for (const auto& [name, record] : records_)
    if (name.ends_with(ending)) return name;
  return {};
}

}  // namespace switchyard
