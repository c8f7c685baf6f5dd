#include "text/parquet/zstd.h"

#include <array>
#include <span>
#include <utility>

#include "text/parquet/encodings.h"
#include "text/parquet/page_output.h"
#include "text/parquet/zstd_entropy.h"

namespace switchyard::parquet {
namespace {

constexpr uint32_t kFrameMagic = 0xFD2FB528, kSkippableMagic = 0x184D2A50;
constexpr uint64_t kMaxBlockBytes = 128 << 10;

// A code of lengths: values base + [0, 2^bits).
struct LengthCode {
  uint32_t base = 0;
  int bits = 0;
};

// Codes of adjoining ranges, of which the first one begins at `base`.
template <size_t N>
constexpr std::array<LengthCode, N> LengthCodes(uint32_t base, std::array<int, N> bits) {
  std::array<LengthCode, N> codes{};
  for (size_t i = 0; i < N; ++i) {
    codes[i] = {base, bits[i]};
    base += 1u << bits[i];
  }
  return codes;
}

constexpr auto kLiteralLengths =
    LengthCodes<36>(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  1,  1,
                        1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
constexpr auto kMatchLengths = LengthCodes<53>(
    3, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
        0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
static_assert(kLiteralLengths[25].base == 64 && kLiteralLengths[35].base == 65536);
static_assert(kMatchLengths[43].base == 131 && kMatchLengths[52].base == 65539);

constexpr int16_t kLiteralDistribution[] = {4, 3, 2, 2, 2, 2, 2, 2, 2,  2,  2,  2,
                                            2, 1, 1, 1, 2, 2, 2, 2, 2,  2,  2,  2,
                                            2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
constexpr int16_t kMatchDistribution[] = {
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
constexpr int16_t kOffsetDistribution[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                           1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

class FrameDecoder {
 public:
  FrameDecoder(Cursor* in, PageOutput* out) : in_(*in), out_(*out) {}

  void Decode() {
    const bool has_checksum = ReadHeader();
    for (bool last = false; !last;) {
      const auto low = in_.Read<uint16_t>("the header of a block");
      const uint32_t header = low | uint32_t{in_.Read<uint8_t>("the header of a block")} << 16;
      last = (header & 1) != 0;
      const uint32_t size = header >> 3;
      if (size > kMaxBlockBytes) in_.Fail("a block is too large");
      switch ((header >> 1) & 3) {
        case 0:
          out_.Append(in_.Take(size, "a block"));
          break;
        case 1:
          if (size == 0) in_.Fail("a block repeats a byte zero times");
          out_.Append(in_.Read<uint8_t>("a repeated byte"));
          out_.Repeat(1, size - 1);
          break;
        case 2: {
          const uint64_t at = in_.offset(), begin = out_.size();
          Cursor block(in_.Take(size, "a block"), in_.where(), at);
          ReadLiterals(&block);
          ReadSequences(&block, begin + kMaxBlockBytes);
          break;
        }
        default:
          in_.Fail("a block has an unknown type");
      }
    }
    if (has_checksum) in_.Take(4, "a checksum");
  }

 private:
  bool ReadHeader() {
    const auto flags = in_.Read<uint8_t>("the header of a frame");
    const bool single = (flags & 32) != 0;
    if (flags & 8) in_.Fail("a frame has reserved bits");
    if (flags & 3) in_.Fail("frames with a dictionary are not supported");
    if (!single) in_.Take(1, "the window of a frame");
    const int size = flags >> 6;
    in_.Take(size == 0 ? (single ? 1 : 0) : uint64_t{1} << size, "the size of a frame");
    return (flags & 4) != 0;
  }

  void ReadLiterals(Cursor* in) {
    literals_.clear();
    // The header's bytes are known after its first byte.
    Cursor ahead = *in;
    const auto first = ahead.Read<uint8_t>("the literals");
    const int kind = first & 3, format = (first >> 2) & 3;
    const auto number = [&](uint64_t count) {
      const auto bytes = in->Take(count, "the size of literals");
      return BitsAt(bytes, 0, static_cast<int>(count) * 8);
    };
    if (kind < 2) {
      const uint64_t size = format == 1   ? number(2) >> 4
                            : format == 3 ? number(3) >> 4
                                          : number(1) >> 3;
      if (size > kMaxBlockBytes) in->Fail("a block has too many literals");
      if (kind == 0) {
        const auto bytes = in->Take(size, "literals");
        literals_.assign(bytes.begin(), bytes.end());
      } else {
        literals_.assign(size, in->Read<uint8_t>("a literal"));
      }
      return;
    }
    const int width = format < 2 ? 10 : format == 2 ? 14 : 18;
    const uint64_t header = number(format < 2 ? 3 : static_cast<uint64_t>(format) + 2);
    const uint64_t mask = (uint64_t{1} << width) - 1;
    const uint64_t size = (header >> 4) & mask, packed = (header >> (4 + width)) & mask;
    if (size > kMaxBlockBytes) in->Fail("a block has too many literals");
    const uint64_t at = in->offset();
    Cursor data(in->Take(packed, "literals"), in->where(), at);
    if (kind == 2) huffman_.Read(&data);
    if (huffman_.empty()) in->Fail("a block repeats a Huffman table before the first");
    if (format == 0) {
      huffman_.Decode(data.Take(data.left(), "literals"), size, *in, &literals_);
      return;
    }
    std::array<uint64_t, 4> bytes{};
    for (size_t i = 0; i < 3; ++i) bytes[i] = data.Read<uint16_t>("the size of a stream");
    const uint64_t part = (size + 3) / 4;
    if (size < 3 * part) in->Fail("four streams have too few literals");
    for (size_t i = 0; i < 4; ++i) {
      huffman_.Decode(data.Take(i < 3 ? bytes[i] : data.left(), "literals"),
                      i < 3 ? part : size - 3 * part, *in, &literals_);
    }
  }

  // Reads the table of one of the three codes of sequences, whose mode is `mode`.
  static void ReadTable(Cursor* in, int mode, std::span<const int16_t> predefined,
                        int predefined_log, int max_log, size_t symbols, FseTable* table) {
    if (mode == 0) *table = FseTable(predefined, predefined_log, *in);
    if (mode == 1) *table = FseTable(in->Read<uint8_t>("a symbol"));
    if (mode == 2) *table = ReadFseTable(in, max_log, symbols);
    if (table->empty()) in->Fail("a block repeats an entropy table before the first");
  }

  // `end`: of the output at most.
  void ReadSequences(Cursor* in, uint64_t end) {
    uint64_t count = in->Read<uint8_t>("the number of sequences");
    if (count == 255) {
      count = in->Read<uint16_t>("the number of sequences") + 0x7F00u;
    } else if (count >= 128) {
      count = ((count - 128) << 8) + in->Read<uint8_t>("the number of sequences");
    }
    uint64_t literal = 0;
    if (count > 0) {
      const auto modes = in->Read<uint8_t>("the modes of sequences");
      if (modes & 3) in->Fail("sequences have an unknown mode");
      ReadTable(in, modes >> 6, kLiteralDistribution, 6, 9, 36, &literal_table_);
      ReadTable(in, (modes >> 4) & 3, kOffsetDistribution, 5, 8, 32, &offset_table_);
      ReadTable(in, (modes >> 2) & 3, kMatchDistribution, 6, 9, 53, &match_table_);
      literal = CopySequences(count, in->Take(in->left(), "sequences"), *in, end);
    } else if (in->left() > 0) {
      in->Fail("a block without sequences goes on");
    }
    out_.Append(std::span(literals_).subspan(literal));
    if (out_.size() > end) in->Fail("a block decompresses to more than 128 KiB");
  }

  // Returns the number of literals that the sequences use.
  uint64_t CopySequences(uint64_t count, std::span<const uint8_t> data, const Cursor& in,
                         uint64_t end) {
    BackwardBits bits(data, in);
    size_t literal_state = literal_table_.Begin(&bits), offset_state = offset_table_.Begin(&bits),
           match_state = match_table_.Begin(&bits);
    uint64_t literal = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const size_t literal_code = literal_table_.Symbol(literal_state),
                   match_code = match_table_.Symbol(match_state);
      const int offset_code = offset_table_.Symbol(offset_state);
      if (literal_code >= kLiteralLengths.size() || match_code >= kMatchLengths.size() ||
          offset_code > 31) {
        in.Fail("a sequence has an unknown code");
      }
      const uint64_t offset = (uint64_t{1} << offset_code) + bits.Read(offset_code);
      const LengthCode& match = kMatchLengths[match_code];
      const uint64_t match_length = match.base + bits.Read(match.bits);
      const LengthCode& literals = kLiteralLengths[literal_code];
      const uint64_t length = literals.base + bits.Read(literals.bits);
      if (bits.left() < 0) in.Fail("the sequences end too early");
      if (length > literals_.size() - literal) in.Fail("a sequence has too many literals");
      out_.Append(std::span(literals_).subspan(literal, length));
      literal += length;
      out_.Repeat(Distance(offset, length == 0), match_length);
      if (out_.size() > end) in.Fail("a block decompresses to more than 128 KiB");
      if (i + 1 == count) break;
      literal_state = literal_table_.Next(literal_state, &bits);
      match_state = match_table_.Next(match_state, &bits);
      offset_state = offset_table_.Next(offset_state, &bits);
    }
    bits.CheckEnd(0);
    return literal;
  }

  // The distance of a copy. Values up to 3 select one of the last three distances.
  uint64_t Distance(uint64_t value, bool without_literals) {
    if (value > 3) {
      recent_ = {value - 3, recent_[0], recent_[1]};
      return recent_[0];
    }
    const uint64_t index = value - 1 + (without_literals ? 1 : 0);
    const uint64_t distance = index < 3 ? recent_[index] : recent_[0] - 1;
    if (index > 1) recent_[2] = recent_[1];
    if (index > 0) recent_[1] = recent_[0];
    recent_[0] = distance;
    return distance;
  }

  Cursor& in_;
  PageOutput& out_;
  ZstdHuffman huffman_;
  FseTable literal_table_, offset_table_, match_table_;
  std::array<uint64_t, 3> recent_{1, 4, 8};
  std::vector<uint8_t> literals_;
};

}  // namespace

std::vector<uint8_t> DecompressZstd(Cursor in, uint64_t bytes) {
  PageOutput out(bytes, &in);
  do {
    const auto magic = in.Read<uint32_t>("the magic number of a frame");
    if ((magic & ~15u) == kSkippableMagic) {
      in.Take(in.Read<uint32_t>("the size of a frame"), "a frame");
    } else if (magic == kFrameMagic) {
      FrameDecoder(&in, &out).Decode();
    } else {
      in.Fail("the data are not Zstandard frames");
    }
  } while (in.left() > 0);
  return out.Finish();
}

}  // namespace switchyard::parquet
