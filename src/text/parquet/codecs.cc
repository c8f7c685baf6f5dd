#include "text/parquet/codecs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "text/parquet/cursor.h"
#include "text/parquet/page_output.h"
#include "text/parquet/zstd.h"

namespace switchyard::parquet {
namespace {

// https://github.com/google/snappy/blob/main/format_description.txt
std::vector<uint8_t> DecompressSnappy(Cursor in, uint64_t bytes) {
  if (in.Varint("the length before compression") != bytes)
    in.Fail("the page has another length before compression than its header says");
  PageOutput out(bytes, &in);
  const auto number = [&](int count) {  // little endian
    uint32_t value = 0;
    for (int i = 0; i < count; ++i)
      value |= static_cast<uint32_t>(in.Read<uint8_t>("a length or distance")) << (8 * i);
    return value;
  };
  while (in.left() > 0) {
    const auto tag = in.Read<uint8_t>("a tag");
    const uint32_t high = tag >> 2;
    switch (tag & 3) {
      case 0: {  // literal bytes; lengths above 60 follow the tag
        const uint64_t count = uint64_t{high < 60 ? high : number(static_cast<int>(high) - 59)} + 1;
        out.Append(in.Take(count, "a literal"));
        break;
      }
      case 1: {  // a copy of 4 to 11 bytes
        const uint32_t distance = ((high >> 3) << 8) | number(1);
        out.Repeat(distance, (high & 7) + 4);
        break;
      }
      case 2:
        out.Repeat(number(2), high + 1);
        break;
      default:
        out.Repeat(number(4), high + 1);
    }
  }
  return out.Finish();
}

// Bits of a DEFLATE stream (RFC 1951), from the lowest of each byte on.
class DeflateBits {
 public:
  explicit DeflateBits(Cursor* in) : in_(in) {}

  // The next 15 bits without consuming them; zeros follow the end of the data.
  uint32_t Peek() {
    while (count_ < 15 && in_->left() > 0) Fill();
    return static_cast<uint32_t>(bits_) & 0x7fff;
  }
  void Drop(int count) {
    if (count > count_) in_->Fail("the compressed data end too early");
    bits_ >>= count;
    count_ -= count;
  }
  uint32_t Take(int count) {  // at most 16
    while (count_ < count) Fill();
    const uint32_t value = static_cast<uint32_t>(bits_) & ((1u << count) - 1);
    Drop(count);
    return value;
  }
  // Drops the bits up to the next byte of the input. Peek may have read two bytes ahead. The caller
  // takes at least these with Take(16), so that no bits are left.
  void Align() { Drop(count_ % 8); }
  [[noreturn]] void Fail(std::string_view what) const { in_->Fail(what); }

 private:
  void Fill() {
    bits_ |= static_cast<uint64_t>(in_->Read<uint8_t>("compressed data")) << count_;
    count_ += 8;
  }

  Cursor* in_;
  uint64_t bits_ = 0;
  int count_ = 0;
};

// A canonical Huffman code of at most 15 bits, as a table of all inputs of the longest code's
// length.
class HuffmanTable {
 public:
  // `lengths`: bits of each symbol's code; 0: the symbol does not occur.
  HuffmanTable(std::span<const uint8_t> lengths, const DeflateBits& bits)
      : table_(size_t{1} << std::ranges::max(lengths), 0) {
    std::array<uint32_t, 16> count{}, next{};
    for (const uint8_t length : lengths) ++count[length];
    count[0] = 0;
    uint32_t code = 0;
    for (size_t length = 1; length < 16; ++length) {
      code = (code + count[length - 1]) << 1;
      next[length] = code;
      if (code + count[length] > 1u << length) bits.Fail("a Huffman code has too many symbols");
    }
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      const int length = lengths[symbol];
      if (length == 0) continue;
      // A code arrives from its highest bit on, so the table's index has it in reverse.
      uint32_t reversed = 0;
      for (uint32_t rest = next[static_cast<size_t>(length)]++, i = 0;
           i < static_cast<uint32_t>(length); ++i, rest >>= 1) {
        reversed = (reversed << 1) | (rest & 1);
      }
      for (uint32_t index = reversed; index < table_.size(); index += 1u << length)
        table_[index] = static_cast<uint16_t>((symbol << 4) | static_cast<size_t>(length));
    }
  }

  uint32_t Next(DeflateBits* bits) const {
    const uint16_t entry = table_[bits->Peek() & (table_.size() - 1)];
    if (entry == 0) bits->Fail("the compressed data have a code without a symbol");
    bits->Drop(entry & 15);
    return entry >> 4;
  }

 private:
  std::vector<uint16_t> table_;  // (symbol << 4) | bits; 0: no code
};

// The codes of a block with dynamic Huffman codes.
std::pair<HuffmanTable, HuffmanTable> DynamicCodes(DeflateBits* bits) {
  constexpr uint8_t kOrder[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const uint32_t literals = bits->Take(5) + 257, distances = bits->Take(5) + 1;
  const uint32_t count = bits->Take(4) + 4;
  if (literals > 286 || distances > 30) bits->Fail("a block has too many codes");
  std::array<uint8_t, 19> code_lengths{};
  for (uint32_t i = 0; i < count; ++i)
    code_lengths[kOrder[i]] = static_cast<uint8_t>(bits->Take(3));
  const HuffmanTable codes(code_lengths, *bits);
  std::vector<uint8_t> lengths;
  while (lengths.size() < literals + distances) {
    const uint32_t symbol = codes.Next(bits);
    if (symbol < 16) {
      lengths.push_back(static_cast<uint8_t>(symbol));
      continue;
    }
    if (symbol == 16 && lengths.empty()) bits->Fail("a block repeats a length before the first");
    const uint8_t repeated = symbol == 16 ? lengths.back() : uint8_t{0};
    const uint32_t times = symbol == 16   ? 3 + bits->Take(2)
                           : symbol == 17 ? 3 + bits->Take(3)
                                          : 11 + bits->Take(7);
    lengths.insert(lengths.end(), times, repeated);
  }
  if (lengths.size() > literals + distances) bits->Fail("a block has too many code lengths");
  const std::span<const uint8_t> all(lengths);
  return {HuffmanTable(all.first(literals), *bits), HuffmanTable(all.subspan(literals), *bits)};
}

std::pair<HuffmanTable, HuffmanTable> MakeFixedCodes(const DeflateBits& bits) {
  std::array<uint8_t, 288> literals{};
  std::array<uint8_t, 30> distances{};
  for (size_t i = 0; i < literals.size(); ++i)
    literals[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  distances.fill(5);
  return {HuffmanTable(literals, bits), HuffmanTable(distances, bits)};
}

// Made once: a page can have many blocks of a few bits.
const std::pair<HuffmanTable, HuffmanTable>& FixedCodes(const DeflateBits& bits) {
  static const std::pair<HuffmanTable, HuffmanTable> codes = MakeFixedCodes(bits);
  return codes;
}

void InflateBlock(const HuffmanTable& literals, const HuffmanTable& distances, DeflateBits* bits,
                  PageOutput* out) {
  for (;;) {
    const uint32_t symbol = literals.Next(bits);
    if (symbol < 256) {
      out->Append(static_cast<uint8_t>(symbol));
      continue;
    }
    if (symbol == 256) return;
    if (symbol > 285) bits->Fail("a copy has an unknown length");
    // Four lengths share a number of additional bits, which grows by one from group to group.
    uint32_t length = symbol - 257 + 3;
    if (symbol == 285) {
      length = 258;
    } else if (symbol >= 265) {
      const uint32_t extra = (symbol - 261) / 4;
      length = ((4 + (symbol - 261) % 4) << extra) + 3 + bits->Take(static_cast<int>(extra));
    }
    const uint32_t code = distances.Next(bits);
    if (code > 29) bits->Fail("a copy has an unknown distance");
    uint32_t distance = code + 1;
    if (code >= 4) {
      const uint32_t extra = (code - 2) / 2;
      distance = ((2 + code % 2) << extra) + 1 + bits->Take(static_cast<int>(extra));
    }
    out->Repeat(distance, length);
  }
}

uint32_t Crc32(std::span<const uint8_t> data) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0xEDB88320u);
      values[i] = value;
    }
    return values;
  }();
  uint32_t crc = ~0u;
  for (const uint8_t byte : data) crc = (crc >> 8) ^ table[(crc ^ byte) & 0xff];
  return ~crc;
}

void SkipGzipHeader(Cursor* in) {
  const auto start = in->Take(10, "the header of GZIP data");
  if (start[0] != 0x1f || start[1] != 0x8b || start[2] != 8) in->Fail("the data are not GZIP");
  const uint8_t flags = start[3];
  if (flags & 4) in->Take(in->Read<uint16_t>("a GZIP field"), "a GZIP field");
  for (const int text : {8, 16}) {  // name and comment, which end with a zero
    if ((flags & text) == 0) continue;
    while (in->Read<uint8_t>("a GZIP name") != 0) {
    }
  }
  if (flags & 2) in->Take(2, "the checksum of a GZIP header");
}

// RFC 1952: members one after the other.
std::vector<uint8_t> DecompressGzip(Cursor in, uint64_t bytes) {
  PageOutput out(bytes, &in);
  do {
    SkipGzipHeader(&in);
    const uint64_t begin = out.size();
    DeflateBits bits(&in);
    for (bool last = false; !last;) {
      last = bits.Take(1) != 0;
      const uint32_t kind = bits.Take(2);
      if (kind == 0) {
        bits.Align();
        const uint32_t count = bits.Take(16), inverted = bits.Take(16);
        if (count != (~inverted & 0xffff)) in.Fail("a stored block has a wrong length");
        out.Append(in.Take(count, "a stored block"));
      } else if (kind == 1) {
        const auto& [literals, distances] = FixedCodes(bits);
        InflateBlock(literals, distances, &bits, &out);
      } else if (kind == 2) {
        const auto [literals, distances] = DynamicCodes(&bits);
        InflateBlock(literals, distances, &bits, &out);
      } else {
        in.Fail("a block has an unknown type");
      }
    }
    bits.Align();
    const auto word = [&] {
      const uint32_t low = bits.Take(16);
      return low | (bits.Take(16) << 16);
    };
    const uint32_t crc = word(), size = word();
    if (size != static_cast<uint32_t>(out.size() - begin) || crc != Crc32(out.From(begin)))
      in.Fail("the checksum or the length of GZIP data differs");
  } while (in.left() > 0);
  return out.Finish();
}

// `factor`: most bytes that a byte of compressed data can decompress to.
void CheckRatio(const Cursor& in, uint64_t bytes, uint64_t factor) {
  if (bytes / factor > in.left())
    in.Fail("the page cannot decompress to as many bytes as its header says");
}

}  // namespace

void CheckCodec(Codec codec, const std::string& where) {
  if (codec <= Codec::kGzip || codec == Codec::kZstd) return;
  throw Error(ErrorKind::kInvalid, where + ": the codec " + NameOf(codec) + " is not supported",
              "write the file with the codec SNAPPY, GZIP, ZSTD or none");
}

std::vector<uint8_t> Decompress(Codec codec, std::span<const uint8_t> data, uint64_t bytes,
                                const std::string& where) {
  CheckCodec(codec, where);
  const Cursor in(data, where);
  if (codec == Codec::kSnappy) {
    CheckRatio(in, bytes, 22);  // copies of 64 bytes take 3 bytes
    return DecompressSnappy(in, bytes);
  }
  if (codec == Codec::kGzip) {
    CheckRatio(in, bytes, 1032);  // copies of 258 bytes take 2 bits
    return DecompressGzip(in, bytes);
  }
  if (codec == Codec::kZstd) {
    CheckRatio(in, bytes, 1 << 15);  // a block of 128 KiB takes 4 bytes
    return DecompressZstd(in, bytes);
  }
  if (data.size() != bytes) in.Fail("the sizes of an uncompressed page differ");
  return {data.begin(), data.end()};
}

}  // namespace switchyard::parquet
