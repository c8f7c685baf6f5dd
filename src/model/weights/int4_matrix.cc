#include "model/weights/int4_matrix.h"

#include <cstring>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // [row % 8] the row's nibble
constexpr uint8_t kSignBits = 0x88;                      // xor: two's complement to code

uint32_t Word(const StoredTensor& t, int64_t i) {
  uint32_t word;
  std::memcpy(&word, t.data + i * sizeof word, sizeof word);
  return word;
}

uint8_t Nibble(uint32_t word, int64_t i) { return static_cast<uint8_t>(word >> (4 * i) & 15); }

// GPTQ stores words of eight columns as [k / 8, n]. Copies them to [rows, words]; each word stays
// unchanged.
void CopyGptq(const Int4Matrix& m, Range rows, Range cols, uint8_t* out) {
  const int64_t words = cols.size() / kInt4Word;
  for (int64_t w = 0; w < words; ++w) {
    const int64_t from = (cols.begin / kInt4Word + w) * m.n;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const uint32_t word = Word(*m.codes, from + row);
      std::memcpy(out + ((row - rows.begin) * words + w) * sizeof word, &word, sizeof word);
    }
  }
}

void CopyAwq(const Int4Matrix& m, Range rows, Range cols, uint8_t* out) {
  for (int64_t col = cols.begin; col < cols.end; col += 2) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t at = col * (m.n / kInt4Word) + row / kInt4Word;
      const int nibble = kAwqNibble[row % kInt4Word];
      const int low = Nibble(Word(*m.codes, at), nibble);
      const int high = Nibble(Word(*m.codes, at + m.n / kInt4Word), nibble);
      out[((row - rows.begin) * cols.size() + col - cols.begin) / 2] =
          static_cast<uint8_t>(low | high << 4);
    }
  }
}

void CopyModelOpt(const Int4Matrix& m, Range rows, Range cols, uint8_t* out) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* pair = m.codes->data + row / 2 * m.k;
    for (int64_t col = cols.begin; col < cols.end; col += 2, ++out) {
      const int low = Nibble(pair[col], row % 2), high = Nibble(pair[col + 1], row % 2);
      *out = static_cast<uint8_t>((low | high << 4) ^ kSignBits);
    }
  }
}

void CopyRows(const Int4Matrix& m, Range rows, Range cols, uint8_t flip, uint8_t* out) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* from = m.codes->data + (row * m.k + cols.begin) / 2;
    for (int64_t i = 0; i < cols.size() / 2; ++i) *out++ = from[i] ^ flip;
  }
}

bool GroupsFirst(Packing packing) { return packing == Packing::kGptq || packing == Packing::kAwq; }

}  // namespace

void Int4Matrix::CopyCodes(Range rows, Range cols, uint8_t* out) const {
  switch (packing) {
    case Packing::kGptq:
      return CopyGptq(*this, rows, cols, out);
    case Packing::kAwq:
      return CopyAwq(*this, rows, cols, out);
    case Packing::kModelOptInt4:
      return CopyModelOpt(*this, rows, cols, out);
    case Packing::kSignedInt4:
      return CopyRows(*this, rows, cols, kSignBits, out);
    case Packing::kPackedInt4:
      return CopyRows(*this, rows, cols, 0, out);
    default:
      CheckFailed(__FILE__, __LINE__, "no packing of int4");
  }
}

float Int4Matrix::Scale(int64_t row, int64_t group) const {
  const int64_t i = GroupsFirst(packing) ? group * n + row : row * groups + group;
  if (scales->dtype == DType::kF32) {
    float scale;
    std::memcpy(&scale, scales->data + i * sizeof scale, sizeof scale);
    return scale;
  }
  uint16_t bits;
  std::memcpy(&bits, scales->data + i * sizeof bits, sizeof bits);
  return scales->dtype == DType::kBF16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
}

uint8_t Int4Matrix::Zero(int64_t row, int64_t group) const {
  if (!zeros) return kInt4Zero;
  const int64_t word = GroupsFirst(packing) ? group * (n / kInt4Word) + row / kInt4Word
                                            : row / kInt4Word * groups + group;
  const int64_t nibble = packing == Packing::kAwq ? kAwqNibble[row % kInt4Word] : row % kInt4Word;
  return (Nibble(Word(*zeros, word), nibble) + (zeros_less_one ? 1 : 0)) & 15;
}

bool Int4Matrix::ZerosAreEight() const {
  if (!zeros) return true;
  const uint32_t eights = zeros_less_one ? 0x77777777u : 0x88888888u;
  const auto words = static_cast<int64_t>(zeros->num_bytes / sizeof eights);
  for (int64_t i = 0; i < words; ++i) {
    if (Word(*zeros, i) != eights) return false;
  }
  return true;
}

}  // namespace switchyard
