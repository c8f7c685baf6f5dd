#include "engine/sampler/random.h"

#include <array>

namespace switchyard {

namespace {

using Block = std::array<uint32_t, 4>;

Block Philox(uint64_t key, uint64_t counter, uint64_t stream) {
  Block x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
             static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * x[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

uint64_t Bits(uint64_t key, uint64_t counter, uint64_t stream) {
  const Block x = Philox(key, counter, stream);
  return uint64_t{x[1]} << 32 | x[0];
}

constexpr uint64_t kTokenStream = 0, kSeedStream = 1;

}  // namespace

double UniformDraw(uint64_t key, uint64_t counter) {
  return static_cast<double>(Bits(key, counter, kTokenStream) >> 11) * 0x1p-53;
}

uint64_t DeriveSeed(uint64_t random_seed, uint64_t request_id) {
  return Bits(random_seed, request_id, kSeedStream);
}

}  // namespace switchyard
