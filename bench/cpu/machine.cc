#include "bench/cpu/machine.h"

#include <cpuid.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

namespace switchyard::bench {
namespace {

struct Feature {
  const char* name;
  int leaf, subleaf, word, bit;  // word: eax, ebx, ecx, edx
};

// Bits of Intel's manual, volume 2, instruction CPUID.
constexpr Feature kFeatures[] = {
    {"avx2", 7, 0, 1, 5},       {"fma", 1, 0, 2, 12},        {"f16c", 1, 0, 2, 29},
    {"avx-vnni", 7, 1, 0, 4},   {"avx512f", 7, 0, 1, 16},    {"avx512bw", 7, 0, 1, 30},
    {"avx512dq", 7, 0, 1, 17},  {"avx512vl", 7, 0, 1, 31},   {"avx512vnni", 7, 0, 2, 11},
    {"avx512bf16", 7, 1, 0, 5}, {"avx512fp16", 7, 0, 3, 23}, {"amx-tile", 7, 0, 3, 24},
    {"amx-bf16", 7, 0, 3, 22},  {"amx-int8", 7, 0, 3, 25},
};

// The first line of a small file; empty if the file does not exist.
std::string LineOf(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::string CpuName() {
  constexpr uint32_t kFirstLeaf = 0x80000002;
  std::array<uint32_t, 12> words{};
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t* w = &words[4 * i];
    if (__get_cpuid(kFirstLeaf + i, &w[0], &w[1], &w[2], &w[3]) == 0) return "unknown";
  }
  std::array<char, sizeof words + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof words);
  std::string name(text.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

std::string CpuInstructions() {
  std::string names;
  for (const Feature& f : kFeatures) {
    std::array<uint32_t, 4> words{};
    if (__get_cpuid_count(f.leaf, f.subleaf, &words[0], &words[1], &words[2], &words[3]) == 0) {
      continue;
    }
    if ((words[f.word] >> f.bit & 1) == 0) continue;
    names += (names.empty() ? "" : " ") + std::string(f.name);
  }
  return names.empty() ? "none of AVX2, AVX-512 and AMX" : names;
}

std::vector<Cache> Caches() {
  std::vector<Cache> caches;
  for (int i = 0;; ++i) {
    const std::string at = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    const std::string type = LineOf(at + "type");
    if (type.empty()) break;
    if (type == "Instruction") continue;
    constexpr int64_t kKib = 1024;
    caches.push_back({std::atoi(LineOf(at + "level").c_str()),
                      std::atoll(LineOf(at + "size").c_str()) * kKib,
                      LineOf(at + "shared_cpu_list")});
  }
  std::ranges::sort(caches, {}, &Cache::level);
  return caches;
}

}  // namespace switchyard::bench
