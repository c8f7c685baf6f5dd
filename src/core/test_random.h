// For tests: random numbers that take little time in code without optimization. The generators and
// distributions of the standard library take 10 to 20 times as long there.
#pragma once

#include <cstdint>
#include <limits>

namespace switchyard {

// SplitMix64 (Steele, Lea and Flood, 2014). Neighbouring seeds give unrelated numbers.
class TestRandom {
 public:
  using result_type = uint64_t;
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return std::numeric_limits<uint64_t>::max(); }
  uint64_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace switchyard
