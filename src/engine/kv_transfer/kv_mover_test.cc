// Copies that a mover makes instead of this process.
#include "engine/kv_transfer/kv_mover.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/kv_transfer/kv_rows.h"
#include "engine/kv_transfer/test_kv_mover.h"

namespace switchyard {
namespace {

TEST(KvMoverTest, AdjacentCopiesBecomeOne) {
  std::vector<std::byte> from(400), to(400);
  const auto at = [](std::vector<std::byte>& memory, size_t offset) {
    return memory.data() + offset;
  };
  KvCopy copy{.to = at(to, 0), .from = at(from, 0), .bytes = 16};
  EXPECT_TRUE(copy.Append({.to = at(to, 16), .from = at(from, 16), .bytes = 8}));
  EXPECT_EQ(copy.bytes, 24);
  EXPECT_FALSE(copy.Append({.to = at(to, 24), .from = at(from, 32), .bytes = 8}));
  EXPECT_FALSE(copy.Append({.to = at(to, 32), .from = at(from, 24), .bytes = 8}));
  KvCopy rows{.to = at(to, 0),
              .from = at(from, 0),
              .bytes = 4,
              .rows = 3,
              .to_stride = 8,
              .from_stride = 12};
  KvCopy more = rows;
  more.to = at(to, 24);
  more.from = at(from, 36);
  more.rows = 1;
  EXPECT_TRUE(rows.Append(more));
  EXPECT_EQ(rows.rows, 4);
  more.from_stride = 16;
  more.to = at(to, 32);
  more.from = at(from, 48);
  EXPECT_FALSE(rows.Append(more));
}

TEST(KvMoverTest, CopiesHaveTheirRows) {
  std::vector<std::byte> from(64), to(64, std::byte{0xee});
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
  KvCopy{.to = to.data() + 1,
         .from = from.data() + 2,
         .bytes = 3,
         .rows = 4,
         .to_stride = 5,
         .from_stride = 7}
      .Run();
  for (int64_t i = 0; i < 64; ++i) {
    const int64_t row = (i - 1) / 5, column = (i - 1) % 5;
    const bool copied = i >= 1 && row < 4 && column < 3;
    EXPECT_EQ(to[i], copied ? from[2 + row * 7 + column] : std::byte{0xee}) << i;
  }
}

// One head of several, from pages that follow one another to pages in reverse order.
TEST(KvMoverTest, RowsAreTheSameWithAMover) {
  constexpr int64_t kPages = 6, kPage = 4, kEnd = 21;
  const KvLayerFormat format{.heads = 2, .key_bytes = 6, .value_bytes = 10};
  const int64_t slots = kPages * kPage;
  const auto memory = [&](int64_t heads, std::byte fill) {
    return std::vector<std::byte>(slots * heads * (format.key_bytes + format.value_bytes), fill);
  };
  const auto shard = [&](std::vector<std::byte>& bytes, Range heads) {
    return KvShard{bytes.data(), bytes.data() + slots * heads.size() * format.key_bytes, heads};
  };
  std::vector<int32_t> up(kPages), down(kPages);
  std::iota(up.begin(), up.end(), 0);
  for (int32_t i = 0; i < kPages; ++i) down[i] = kPages - 1 - i;
  std::vector<std::byte> whole = memory(2, std::byte{0});
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::byte>(i * 7);
  const KvShard from = shard(whole, {0, 2});
  const KvLayerRows source{{&from, 1}, up, kPage, kPages};
  for (const std::vector<int32_t>& pages : {up, down}) {
    std::vector<std::byte> plain[2], moved[2];
    std::vector<KvShard> to_plain, to_moved;
    for (int i = 0; i < 2; ++i) {
      plain[i] = moved[i] = memory(1, std::byte{0xee});
      to_plain.push_back(shard(plain[i], {i, i + 1}));
      to_moved.push_back(shard(moved[i], {i, i + 1}));
    }
    FakeMover mover;
    CopyKvRows(format, source, {to_plain, pages, kPage, kPages}, 3, kEnd);
    CopyKvRows(format, source, {to_moved, pages, kPage, kPages}, 3, kEnd, &mover);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(plain[i], moved[i]);
    // Keys and values of two ranks. Pages that follow one another are one copy.
    EXPECT_EQ(mover.copies.load(), pages == up ? 4 : 4 * kPages);
  }
}

TEST(KvMoverTest, AnExportStaysUntilItIsCleared) {
  alignas(64) std::byte page[1024] = {};
  std::vector<std::byte> memory(100);
  KvExportSlot slot(page), other(page);
  EXPECT_FALSE(other.Get());
  slot.Set(FakeMover::Export(memory));
  ASSERT_TRUE(other.Get());
  EXPECT_EQ(other.Get()->address, reinterpret_cast<uint64_t>(memory.data()));
  EXPECT_EQ(other.Get()->bytes, 100u);
  KvProgress(page).Publish(3, 4);  // has other bytes of the page
  EXPECT_EQ(other.Get()->bytes, 100u);
  slot.Clear();
  EXPECT_FALSE(other.Get());
}

}  // namespace
}  // namespace switchyard
