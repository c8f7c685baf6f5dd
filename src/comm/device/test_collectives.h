// Checks collectives against plain loops, for tests of their transports.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/test_random.h"

namespace switchyard {

// The input of member `rank`: numbers whose sum depends on the reduction order.
inline std::vector<float> Values(int rank, size_t count, unsigned salt) {
  TestRandom random(salt * 1000 + static_cast<unsigned>(rank));
  std::vector<float> values(count);
  float* next = values.data();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random();
    const auto scale = static_cast<float>(1 << (bits % 20));
    next[i] = static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31f * scale;
  }
  return values;
}

inline std::vector<float> SumOfAll(int size, size_t count, unsigned salt) {
  std::vector<float> sum = Values(0, count, salt);
  for (int rank = 1; rank < size; ++rank) {
    const auto values = Values(rank, count, salt);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::vector<int> World(int size) {
  std::vector<int> group(size);
  std::iota(group.begin(), group.end(), 0);
  return group;
}

inline std::string Text(size_t length, unsigned salt) {
  TestRandom random(salt);
  std::string text(length, '\0');
  uint64_t bits = 0;
  for (size_t i = 0; i < length; ++i) {
    bits = i % 8 == 0 ? random() : bits >> 8;
    text[i] = static_cast<char>(bits);
  }
  return text;
}

// Runs a random sequence of collectives from one seed, with sizes from zero to several rounds.
class RandomCollectives {
 public:
  RandomCollectives(Communicator& comm, size_t staging_bytes)
      : comm_(comm), staging_(staging_bytes) {}

  void Run(unsigned steps) {
    std::mt19937 random(7);
    for (unsigned step = 0; step < steps; ++step) {
      const unsigned operation = random() % 7;
      // Mostly one round or less, sometimes up to three rounds.
      const size_t bytes = random() % (random() % 4 == 0 ? 2 * staging_ : staging_ / 16 + 1);
      switch (operation) {
        case 0:
          Expect(AllReduce(bytes / 4, step));
          break;
        case 1:
          Expect(AllGather(bytes, step));
          break;
        case 2:
          Expect(AllGatherV(bytes, step));
          break;
        case 3:
          Expect(ReduceScatter(bytes / 4, step));
          break;
        case 4:
          Expect(Broadcast(bytes, step));
          break;
        case 5:
          Expect(ReduceScatterV(bytes / 4, step));
          break;
        default:
          comm_.Barrier("drill");
          break;
      }
    }
  }

 private:
  void Expect(bool ok) {
    if (!ok) throw std::runtime_error("wrong result");
  }

  bool AllReduce(size_t count, unsigned salt) {
    auto data = Values(comm_.rank(), count, salt);
    comm_.AllReduceSum(data.data(), count);
    return SameBits(data, SumOfAll(comm_.size(), count, salt));
  }

  bool ReduceScatter(size_t count, unsigned salt) {
    const size_t size = static_cast<size_t>(comm_.size());
    const auto in = Values(comm_.rank(), count * size, salt);
    std::vector<float> out(count);
    comm_.ReduceScatterSum(in.data(), out.data(), count);
    const auto all = SumOfAll(comm_.size(), count * size, salt);
    const auto part = all.begin() + static_cast<ptrdiff_t>(count) * comm_.rank();
    return SameBits(out, {part, part + static_cast<ptrdiff_t>(count)});
  }

  // Unequal parts, some of them empty; out of place or in place in the member's own part.
  bool ReduceScatterV(size_t count, unsigned salt) {
    std::vector<size_t> counts(static_cast<size_t>(comm_.size()));
    size_t total = 0, begin = 0;
    for (unsigned r = 0; r < counts.size(); ++r) {
      if (r == static_cast<unsigned>(comm_.rank())) begin = total;
      counts[r] = (r + salt) % 3 == 0 ? 0 : count / (1 + (r + salt) % 5);
      total += counts[r];
    }
    const size_t mine = counts[static_cast<size_t>(comm_.rank())];
    const auto all = SumOfAll(comm_.size(), total, salt);
    auto in = Values(comm_.rank(), total, salt);
    std::vector<float> out(mine);
    if (salt % 2 == 0) {
      comm_.ReduceScatterV(in.data(), out.data(), counts);
    } else {
      comm_.ReduceScatterV(in.data(), in.data() + begin, counts);
      out.assign(in.begin() + static_cast<ptrdiff_t>(begin),
                 in.begin() + static_cast<ptrdiff_t>(begin + mine));
    }
    const auto part = all.begin() + static_cast<ptrdiff_t>(begin);
    return SameBits(out, {part, part + static_cast<ptrdiff_t>(mine)});
  }

  bool AllGather(size_t bytes, unsigned salt) {
    const auto size = static_cast<size_t>(comm_.size());
    const auto rank = static_cast<size_t>(comm_.rank());
    std::string expected;
    for (unsigned r = 0; r < size; ++r) expected += Text(bytes, salt * 100 + r);
    std::string out(size * bytes, '?');
    const std::string mine = Text(bytes, salt * 100 + static_cast<unsigned>(rank));
    if (salt % 2 == 0) {
      comm_.AllGather(mine.data(), out.data(), bytes);
    } else {  // in place
      std::memcpy(out.data() + rank * bytes, mine.data(), bytes);
      comm_.AllGather(out.data() + rank * bytes, out.data(), bytes);
    }
    return out == expected;
  }

  bool AllGatherV(size_t bytes, unsigned salt) {
    std::vector<size_t> counts(static_cast<size_t>(comm_.size()));
    std::string expected;
    for (unsigned r = 0; r < counts.size(); ++r) {
      counts[r] = (r + salt) % 3 == 0 ? 0 : bytes / (1 + (r + salt) % 5);
      expected += Text(counts[r], salt * 100 + r);
    }
    const auto rank = static_cast<unsigned>(comm_.rank());
    std::string out(expected.size(), '?');
    comm_.AllGatherV(Text(counts[rank], salt * 100 + rank).data(), out.data(), counts);
    return out == expected;
  }

  bool Broadcast(size_t bytes, unsigned salt) {
    const std::string message = Text(salt % 7 == 0 ? 0 : bytes, salt);
    const std::string mine = comm_.rank() == 0 ? message : "not this";
    return comm_.Broadcast(mine, salt % 2 == 0) == message;
  }

  Communicator& comm_;
  size_t staging_;
};

}  // namespace switchyard
