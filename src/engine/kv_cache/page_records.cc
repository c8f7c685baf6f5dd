#include "engine/kv_cache/page_records.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/check.h"
#include "core/hash.h"

namespace switchyard {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

// Precedes the records in memory. While `used` is 0, there are no records, and nothing reads or
// writes their memory. So Linux allocates no pages for it.
struct PageRecords::Header {
  alignas(kAlignment) std::atomic<uint32_t> used;
};

// The page's tokens follow in memory. A writer clears `valid` first and sets it last.
struct PageRecords::Record {
  std::atomic<uint32_t> valid;
  std::atomic<int32_t> parent;
  uint64_t owner;
  uint64_t salt_bytes;
  std::array<char, kMaxSalt> salt;
};

size_t PageRecords::Stride(int32_t page_size) {
  static_assert(sizeof(Record) == kAlignment);
  const size_t bytes = sizeof(Record) + static_cast<size_t>(page_size) * sizeof(int32_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t PageRecords::Bytes(int64_t pages, int32_t page_size) {
  return sizeof(Header) + static_cast<size_t>(pages) * Stride(page_size);
}

PageRecords::PageRecords(std::span<std::byte> memory, int64_t pages, int32_t page_size)
    : memory_(memory), pages_(pages), page_size_(page_size) {
  CHECK_GE(memory.size(), Bytes(pages, page_size));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % kAlignment, 0u);
}

PageRecords::Header& PageRecords::header() const {
  return *reinterpret_cast<Header*>(memory_.data());
}

PageRecords::Record& PageRecords::At(int32_t page) const {
  CHECK(page >= 0 && page < pages_);
  const size_t offset = sizeof(Header) + static_cast<size_t>(page) * Stride(page_size_);
  return *reinterpret_cast<Record*>(memory_.data() + offset);
}

std::span<int32_t> PageRecords::TokensOf(int32_t page) const {
  return {reinterpret_cast<int32_t*>(&At(page) + 1), static_cast<size_t>(page_size_)};
}

void PageRecords::Set(int32_t page, const Page& content) {
  CHECK_EQ(content.tokens.size(), static_cast<size_t>(page_size_));
  if (content.salt.size() > kMaxSalt) return;
  if (header().used.load() == 0) header().used.store(1);
  Record& record = At(page);
  record.valid.store(0);
  record.parent.store(content.parent);
  record.owner = content.owner;
  record.salt_bytes = content.salt.size();
  record.salt.fill('\0');
  std::ranges::copy(content.salt, record.salt.begin());
  std::ranges::copy(content.tokens, TokensOf(page).begin());
  record.valid.store(1);
}

void PageRecords::Clear(int32_t page) {
  if (header().used.load() != 0) At(page).valid.store(0);
}

void PageRecords::SetParent(int32_t page, int32_t parent) { At(page).parent.store(parent); }

std::optional<PageRecords::Page> PageRecords::Get(int32_t page) const {
  if (header().used.load() == 0) return std::nullopt;
  const Record& record = At(page);
  if (record.valid.load() != 1 || record.salt_bytes > kMaxSalt) return std::nullopt;
  return Page{.parent = record.parent.load(),
              .owner = record.owner,
              .salt = {record.salt.data(), record.salt_bytes},
              .tokens = TokensOf(page)};
}

int64_t PageRecords::count() const {
  int64_t count = 0;
  for (int32_t page = 0; page < pages_; ++page) count += Get(page) ? 1 : 0;
  return count;
}

// A hash of each record. Two multiplications per word mix all bits (splitmix64). Compared records
// differ only because ranks ended at different steps, so no attacker can choose colliding ones.
std::vector<uint64_t> PageRecords::Digests() const {
  std::vector<uint64_t> digests(pages_, 0);
  for (int32_t page = 0; page < pages_; ++page) {
    const auto content = Get(page);
    if (!content) continue;
    uint64_t hash = kSplitMixStep;
    const auto mix = [&hash](uint64_t word) { hash = MixBits(hash ^ word); };
    mix(static_cast<uint32_t>(content->parent));
    mix(content->owner);
    mix(content->salt.size());
    for (const char byte : content->salt) mix(static_cast<unsigned char>(byte));
    for (const int32_t token : content->tokens) mix(static_cast<uint32_t>(token));
    digests[page] = hash != 0 ? hash : 1;
  }
  return digests;
}

void PageRecords::KeepCommon(std::span<const uint64_t> digests) {
  const auto pages = static_cast<size_t>(pages_);
  CHECK(!digests.empty() && digests.size() % pages == 0);
  for (size_t page = 0; page < pages; ++page) {
    for (size_t other = page + pages; other < digests.size(); other += pages)
      if (digests[other] != digests[page]) Clear(static_cast<int32_t>(page));
  }
}

}  // namespace switchyard
