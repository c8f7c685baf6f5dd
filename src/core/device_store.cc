#include "core/device_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/rounding.h"

namespace switchyard {
namespace {

constexpr uint64_t kRecordMagic = 0x31444c4548535457;  // "WTSHELD1"
constexpr size_t kAlignment = 256;
constexpr size_t kLeastChunk = size_t{32} << 20, kMostChunk = size_t{4} << 30;
constexpr uint64_t kFreed = ~uint64_t{0};  // offset of an allocation that was freed before Finish

}  // namespace

struct DeviceStore::State {
  struct Allocation {
    uint64_t bytes = 0;   // as requested
    uint64_t offset = 0;  // or kFreed
    bool operator==(const Allocation&) const = default;
  };

  std::unique_ptr<DeviceChunks> chunks;
  size_t expected = 0;
  std::vector<uint64_t> chunk_bytes;
  std::vector<int> fds;  // of the mapped chunks
  size_t mapped = 0;     // bytes of all chunks

  std::mutex mutex;  // guards the members below
  std::vector<Allocation> allocations;
  std::map<size_t, size_t> holes;  // freed ranges below `end`: offset to bytes
  size_t end = 0;                  // bytes in use, with holes
  size_t next = 0;                 // if filled: index of the next allocation
  bool filled = false;

  ~State() { Close(); }
  void Close() {
    for (const int fd : std::exchange(fds, {})) close(fd);
  }

  void Grow(size_t needed);
  size_t Place(size_t bytes);
  void Free(size_t index);
};

// Maps chunks until `needed` bytes are mapped.
void DeviceStore::State::Grow(size_t needed) {
  if (needed > chunks->capacity())
    throw Resource("the kept memory needs more than the {} bytes of the GPU", chunks->capacity());
  while (mapped < needed) {
    const size_t want = std::max(expected, needed) - mapped;
    const size_t bytes =
        std::min<size_t>(RoundUp(std::clamp(want, kLeastChunk, kMostChunk), chunks->unit()),
                         chunks->capacity() - mapped);
    fds.push_back(chunks->Create(mapped, bytes));
    chunk_bytes.push_back(bytes);
    mapped += bytes;
  }
}

// The offset of `bytes` free and zeroed bytes, a multiple of kAlignment.
size_t DeviceStore::State::Place(size_t bytes) {
  for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
    const auto [offset, size] = *hole;
    if (size < bytes) continue;
    holes.erase(hole);
    if (size > bytes) holes.emplace(offset + bytes, size - bytes);
    chunks->Zero(offset, bytes);
    return offset;
  }
  Grow(end + bytes);
  return std::exchange(end, end + bytes);
}

// In a filled store nothing is freed, because the next model gets the same memory.
void DeviceStore::State::Free(size_t index) {
  const std::lock_guard lock(mutex);
  if (filled) return;
  Allocation& freed = allocations[index];
  size_t offset = std::exchange(freed.offset, kFreed), size = RoundUp(freed.bytes, kAlignment);
  auto after = holes.lower_bound(offset);
  if (after != holes.end() && offset + size == after->first) {
    size += after->second;
    after = holes.erase(after);
  }
  if (after != holes.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      holes.erase(before);
    }
  }
  holes.emplace(offset, size);
}

DeviceStore::DeviceStore(std::unique_ptr<DeviceChunks> chunks, size_t expected)
    : state_(std::make_shared<State>()) {
  state_->chunks = std::move(chunks);
  state_->expected = std::min(expected, state_->chunks->capacity());
}

DeviceStore::~DeviceStore() = default;

// The record is a list of words: magic, key, number and bytes of the chunks, and of the
// allocations.
std::string DeviceStore::Record(uint64_t key) const {
  const std::lock_guard lock(state_->mutex);
  CHECK(state_->filled);
  std::vector<uint64_t> words = {kRecordMagic, key, state_->chunk_bytes.size()};
  words.insert(words.end(), state_->chunk_bytes.begin(), state_->chunk_bytes.end());
  words.push_back(state_->allocations.size());
  for (const State::Allocation& allocation : state_->allocations) {
    words.push_back(allocation.bytes);
    words.push_back(allocation.offset);
  }
  std::string record(words.size() * sizeof(uint64_t), '\0');
  std::memcpy(record.data(), words.data(), record.size());
  return record;
}

bool DeviceStore::Map(uint64_t key, std::string_view record, const std::vector<int>& fds) {
  State& my = *state_;
  CHECK(my.mapped == 0 && !my.filled);
  std::vector<uint64_t> words(record.size() / sizeof(uint64_t));
  if (words.size() < 4 || record.size() % sizeof(uint64_t) != 0) return false;
  std::memcpy(words.data(), record.data(), record.size());
  if (words[0] != kRecordMagic || words[1] != key || words[2] != fds.size()) return false;
  const size_t chunks = fds.size(), first = 4 + chunks;
  if (words.size() < first || (words.size() - first) / 2 != words[first - 1] ||
      (words.size() - first) % 2 != 0)
    return false;
  size_t mapped = 0;
  for (size_t i = 0; i < chunks; ++i) {
    const uint64_t bytes = words[3 + i];
    if (bytes == 0 || bytes % my.chunks->unit() != 0 || bytes > my.chunks->capacity() - mapped)
      return false;
    mapped += bytes;
  }
  for (size_t i = first; i < words.size(); i += 2) {
    const uint64_t bytes = words[i], offset = words[i + 1];
    if (offset != kFreed && (bytes > mapped || offset > mapped - bytes)) return false;
    my.allocations.push_back({bytes, offset});
  }
  for (size_t i = 0; i < chunks; ++i) {
    const int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
    if (fd < 0) throw Resource("cannot duplicate a descriptor of GPU memory");
    my.fds.push_back(fd);
    my.chunks->Import(fd, my.mapped, words[3 + i]);
    my.chunk_bytes.push_back(words[3 + i]);
    my.mapped += words[3 + i];
  }
  my.filled = true;
  return true;
}

void DeviceStore::Begin() {
  const std::lock_guard lock(state_->mutex);
  CHECK(state_->filled || state_->allocations.empty());
  state_->next = 0;
}

std::shared_ptr<std::byte> DeviceStore::Allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  State& my = *state_;
  const std::lock_guard lock(my.mutex);
  if (my.filled) {
    if (my.next >= my.allocations.size() || my.allocations[my.next].bytes != bytes)
      throw Resource(
          "the memory that the GPU has kept differs from that of the model: allocation {} of {} "
          "has "
          "{} bytes",
          my.next, my.allocations.size(), bytes);
    const uint64_t offset = my.allocations[my.next++].offset;
    return {state_, my.chunks->base() + (offset == kFreed ? my.mapped : offset)};
  }
  const size_t index = my.allocations.size();
  const size_t offset = my.Place(RoundUp(bytes, kAlignment));
  my.allocations.push_back({bytes, offset});
  return {my.chunks->base() + offset, [state = state_, index](std::byte*) { state->Free(index); }};
}

bool DeviceStore::filled() const {
  const std::lock_guard lock(state_->mutex);
  return state_->filled;
}

void DeviceStore::Finish() {
  State& my = *state_;
  const std::lock_guard lock(my.mutex);
  if (my.filled && my.next != my.allocations.size())
    throw Resource(
        "the memory that the GPU has kept differs from that of the model, which has made {} of {} "
        "allocations",
        my.next, my.allocations.size());
  my.filled = true;
}

void DeviceStore::Release() {
  CHECK(filled());
  state_->Close();
  state_->chunks->Unmap();
  state_->mapped = 0;
}

void DeviceStore::Restore() {
  State& my = *state_;
  CHECK(my.mapped == 0);
  try {
    for (const uint64_t bytes : my.chunk_bytes) {
      my.fds.push_back(my.chunks->Create(my.mapped, bytes));
      my.mapped += bytes;
    }
  } catch (...) {
    Release();
    throw;
  }
}

const std::vector<int>& DeviceStore::descriptors() const { return state_->fds; }
size_t DeviceStore::bytes() const { return state_->mapped; }
bool DeviceStore::Works() { return state_->chunks->Works(); }

}  // namespace switchyard
