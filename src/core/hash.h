// Hashes for inputs that are not chosen to collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace switchyard {

// FNV-1a with 64 bits (Fowler, Noll, Vo: http://www.isthe.com/chongo/tech/comp/fnv/).
class Fnv1a {
 public:
  // Adds the bytes of text.
  void Add(std::string_view text) { AddBytes(text.data(), text.size()); }
  void AddBytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) AddUnit(bytes[i]);
  }
  // Adds a number as one unit instead of its bytes: eight times as fast, for numbers that differ in
  // their low bits.
  void AddUnit(uint64_t unit) { value_ = (value_ ^ unit) * 0x100000001b3u; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

inline uint64_t HashOf(std::string_view text) {
  Fnv1a hash;
  hash.Add(text);
  return hash.value();
}

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). The i-th
// number of the generator with the state `seed` is MixBits(seed + i * kSplitMixStep), i ≥ 1.
constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;
// Each bit of x changes half of the bits of the result on average.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t SplitMix64(uint64_t x) { return MixBits(x + kSplitMixStep); }

}  // namespace switchyard
