#include "kernels/cpu/int8_blocks.h"

#include <algorithm>
#include <cstring>

#include "quant/activations.h"
#include "quant/formats.h"
#include "quant/panels.h"
#include "quant/vector_width.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kWordColumns = 8;  // columns whose even and odd codes are separated
constexpr int64_t kWords = kInt8GroupSize / kWordColumns;  // words of a chunk
constexpr int64_t kMostBlocks = kInt8GroupSize / kNvfp4BlockSize;

// Separates the even and odd columns of each chunk in place, and writes the starts of its blocks of
// `words` words, as float32 if `floats` is set.
struct SeparateChunks {
  [[gnu::always_inline]] static inline void Run(int8_t* codes, int64_t chunks, int64_t words,
                                                int32_t offset, bool floats, char* starts) {
    for (int64_t c = 0; c < chunks; ++c, codes += kInt8GroupSize) {
      int8_t chunk[kInt8GroupSize];
      int32_t sums[kWords];
      __builtin_memcpy(chunk, codes, sizeof(chunk));
      Separate(chunk, codes, sums);
      for (int64_t word = 0; word < kWords; word += words, starts += sizeof(int32_t)) {
        int32_t sum = 0;
        for (int64_t i = 0; i < words; ++i) sum += sums[word + i];
        const int32_t start = -offset * sum;
        const float same = static_cast<float>(start);
        __builtin_memcpy(starts, floats ? static_cast<const void*>(&same) : &start, sizeof(start));
      }
    }
  }
  // Separates the columns of one chunk, and stores the sum of each word's codes in `sums`.
  [[gnu::always_inline]] static inline void Separate(const int8_t* __restrict from,
                                                     int8_t* __restrict to,
                                                     int32_t* __restrict sums) {
    constexpr uint64_t kEven = 0x00ff00ff00ff00ff, kSigns = 0x8080808080808080;
    for (int64_t i = 0; i < kWords; ++i) {
      uint64_t word;
      __builtin_memcpy(&word, from + i * kWordColumns, sizeof(word));
      const uint64_t biased = word ^ kSigns;  // codes + 128
      uint64_t sum = (biased & kEven) + ((biased >> 8) & kEven);
      sum += sum >> 32;
      sum += sum >> 16;
      sums[i] = static_cast<int32_t>(sum & 0xffff) - 128 * static_cast<int32_t>(kWordColumns);
      // Exchanges the inner bytes of each half, then the inner pairs of the word.
      const uint64_t bytes = (word ^ (word >> 8)) & 0x0000ff000000ff00;
      word ^= bytes ^ (bytes << 8);
      const uint64_t pairs = (word ^ (word >> 16)) & 0x00000000ffff0000;
      word ^= pairs ^ (pairs << 16);
      const auto even = static_cast<uint32_t>(word), odd = static_cast<uint32_t>(word >> 32);
      __builtin_memcpy(to + i * sizeof(even), &even, sizeof(even));
      __builtin_memcpy(to + kInt8GroupSize / 2 + i * sizeof(odd), &odd, sizeof(odd));
    }
  }
};

// Whether the `starts` of rows are factors of minima (int8_blocks.h).
bool HasMinima(const WeightView& w) {
  return w.format == WeightFormat::kQ4KPanels || w.format == WeightFormat::kQ5KPanels;
}

// Columns of a block of a view of panels; 0 if the view does not begin at the first row of a panel
// and the first column of a part.
int64_t PanelBlockColumns(const WeightView& w) {
  if (!HasPanels(w.format)) return 0;
  const bool whole = w.row0 % kPanelHeight == 0 && w.row_step == 1 && w.col0 % kPanelColumns == 0;
  if (!whole) return 0;
  if (w.format == WeightFormat::kQ6KPanels) return kMxfp4BlockSize / 2;
  if (w.format == WeightFormat::kNvfp4Panels) return kNvfp4BlockSize;
  return IsInt4Panels(w.format) ? w.group_size : kMxfp4BlockSize;
}

}  // namespace

int64_t Int8BlockColumns(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return w.col0 % kMxfp4BlockSize == 0 ? kMxfp4BlockSize : 0;
    case WeightFormat::kNvfp4:
      return w.col0 % kNvfp4BlockSize == 0 ? kNvfp4BlockSize : 0;
    case WeightFormat::kInt4Group: {
      if (w.col0 % 2 != 0) return 0;
      if (w.group_size >= w.stored_k) return kInt8GroupSize;  // one scale for the row
      const bool whole_chunks = w.group_size % kInt8GroupSize == 0;
      const int64_t block = whole_chunks ? kInt8GroupSize : w.group_size;
      const bool allowed = block == 32 || block == 64 || block == kInt8GroupSize;
      return allowed && w.col0 % block == 0 ? block : 0;
    }
    default:
      return PanelBlockColumns(w);
  }
}

bool HasInt8Blocks(const WeightView& w) {
  const bool int8_rows =
      w.activation == ActivationFormat::kInt8Group || w.activation == ActivationFormat::kInt8Token;
  return int8_rows && TakesInt8Groups(w.format) && Int8BlockColumns(w) > 0;
}

bool SameInt8Blocks(const WeightView& a, const WeightView& b) {
  return Int8BlockColumns(a) == Int8BlockColumns(b) && FourBitOffset(a) == FourBitOffset(b) &&
         HasMinima(a) == HasMinima(b);
}

int32_t FourBitOffset(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kInt4Group:
      return w.zeros != nullptr ? 16 : 8;
    case WeightFormat::kInt4Panels:
    case WeightFormat::kInt4HalfPanels:
    case WeightFormat::kQ4_0Panels:
      return 8;
    case WeightFormat::kInt4ZeroPanels:
    case WeightFormat::kInt4HalfZeroPanels:
      return 16;
    case WeightFormat::kQ8_0Panels:
    case WeightFormat::kIQ4XSPanels:
      return 128;
    case WeightFormat::kQ6KPanels:
      return 32;
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels:
      return 1;
    default:  // e2m1
      return 12;
  }
}

int64_t Int8BlockRowBytes(int64_t k) {
  const int64_t chunks = CeilDiv(k, kInt8GroupSize);
  const auto numbers = static_cast<int64_t>(sizeof(float) + kMostBlocks * sizeof(int32_t));
  return chunks * (kInt8GroupSize + numbers);
}

void PutInt8BlockRow(const WeightView& w, const float* x, int64_t k, char* row) {
  const int64_t chunks = CeilDiv(k, kInt8GroupSize), columns = chunks * kInt8GroupSize;
  auto* codes = reinterpret_cast<int8_t*>(row);
  auto* scales = reinterpret_cast<float*>(row + columns);
  if (w.activation == ActivationFormat::kInt8Token) {
    std::fill_n(scales, chunks, QuantizeInt8Row(x, k, codes).scale);
  } else {
    QuantizeInt8Groups(x, k, codes, scales);
  }
  std::memset(codes + k, 0, static_cast<size_t>(columns - k));
  auto* starts = reinterpret_cast<char*>(scales + chunks);
  vector_width::RunWidest<SeparateChunks>(codes, chunks, Int8BlockColumns(w) / kWordColumns,
                                          FourBitOffset(w), HasMinima(w), starts);
}

}  // namespace switchyard::kernels::cpu
