// Records of the tokens in each page of the KV cache, in memory that outlives the rank's process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace switchyard {

// A rank's records of the pages whose keys and values it has computed. With them, a new process can
// use the pages of the previous process. Each page has its own record, which is valid or not at
// every instant, so the process may end at any point. A record is valid only while its page holds
// the keys and values of these tokens, and while the record of its parent page is valid. Borrows
// the memory. Used by the rank's thread only.
class PageRecords {
 public:
  static constexpr int32_t kNoParent = -1;
  // Pages of sequences with a longer salt get no record.
  static constexpr size_t kMaxSalt = 40;

  struct Page {
    int32_t parent = kNoParent;       // the page of the preceding tokens
    uint64_t owner = 0;               // the request that computed the page
    std::string_view salt;            // SequencePages::salt
    std::span<const int32_t> tokens;  // [page_size]
  };

  static size_t Bytes(int64_t pages, int32_t page_size);
  // `memory`: at least Bytes, aligned to 64 bytes. Memory of zeros holds no records.
  PageRecords(std::span<std::byte> memory, int64_t pages, int32_t page_size);

  void Set(int32_t page, const Page& content);
  void Clear(int32_t page);
  // Changes the parent in the record of `page`. The new parent must hold the same tokens as the old
  // one.
  void SetParent(int32_t page, int32_t parent);
  // The record of `page`, or nullopt if it has none. Its views are valid until the record changes.
  // If the memory was damaged, `parent` may be any number.
  std::optional<Page> Get(int32_t page) const;
  int64_t count() const;  // number of valid records

  // Ranks of an attention group must have the same cache, but they may have ended at different
  // points. Digests returns a hash of each page's record, [pages]; 0: no record. KeepCommon clears
  // the records that differ between ranks. `digests` [ranks, pages]: the result of Digests on each
  // rank of the group.
  std::vector<uint64_t> Digests() const;
  void KeepCommon(std::span<const uint64_t> digests);

 private:
  struct Header;
  struct Record;
  Header& header() const;
  static size_t Stride(int32_t page_size);
  Record& At(int32_t page) const;
  std::span<int32_t> TokensOf(int32_t page) const;

  const std::span<std::byte> memory_;
  const int64_t pages_;
  const int32_t page_size_;
};

}  // namespace switchyard
