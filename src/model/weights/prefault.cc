#include "model/weights/prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

#ifndef MADV_POPULATE_READ  // Linux 5.14; the C library's headers may be older
#define MADV_POPULATE_READ 22
#endif

namespace switchyard {
namespace {

constexpr size_t kChunk = size_t{32} << 20;

// Full pages, ascending and disjoint.
std::vector<MappedRange> MergePages(std::vector<MappedRange> ranges) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (MappedRange& r : ranges) {
    r.begin -= reinterpret_cast<uintptr_t>(r.begin) % page;
    r.end += (page - reinterpret_cast<uintptr_t>(r.end) % page) % page;
  }
  std::ranges::sort(ranges, {}, &MappedRange::begin);
  std::vector<MappedRange> merged;
  for (const MappedRange& r : ranges) {
    if (!merged.empty() && r.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, r.end);
    } else {
      merged.push_back(r);
    }
  }
  return merged;
}

// Blocks until the pages are resident. On an older kernel, it only gives a readahead hint and does
// not block.
void Populate(const uint8_t* begin, size_t size) {
  void* p = const_cast<uint8_t*>(begin);
  if (madvise(p, size, MADV_POPULATE_READ) == 0) return;
  if (errno == EINVAL) {
    madvise(p, size, MADV_WILLNEED);
    return;
  }
  throw Resource("cannot read the checkpoint's files: {}", std::strerror(errno));
}

}  // namespace

void Prefault(std::vector<MappedRange> ranges,
              const std::function<void(size_t done, size_t total)>& progress) {
  const std::vector<MappedRange> merged = MergePages(std::move(ranges));
  size_t total = 0, done = 0;
  for (const MappedRange& r : merged) total += static_cast<size_t>(r.end - r.begin);
  for (const MappedRange& r : merged) {
    for (const uint8_t* p = r.begin; p < r.end;) {
      const size_t size = std::min(kChunk, static_cast<size_t>(r.end - p));
      Populate(p, size);
      p += size;
      done += size;
      if (progress) progress(done, total);
    }
  }
}

void DropPages(const MappedRange& range) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // The whole pages within the range.
  const uintptr_t before = (page - reinterpret_cast<uintptr_t>(range.begin) % page) % page;
  const uintptr_t after = reinterpret_cast<uintptr_t>(range.end) % page;
  const auto bytes = static_cast<uintptr_t>(range.end - range.begin);
  if (before + after >= bytes) return;
  madvise(const_cast<uint8_t*>(range.begin) + before, bytes - before - after, MADV_DONTNEED);
}

}  // namespace switchyard
