// Which instruction set the kernels use: CPUID says what the CPU has, XCR0 what the operating
// system saves.
#include <cpuid.h>

#include <atomic>
#include <string_view>

#include "core/error.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"

namespace switchyard::kernels {
namespace {

uint64_t ReadXcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

Isa Detect() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kReference;
  constexpr uint32_t kFeatures1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  if ((c & kFeatures1) != kFeatures1) return Isa::kReference;
  constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6;
  const uint64_t saved = ReadXcr0();
  if ((saved & kYmmState) != kYmmState) return Isa::kReference;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return Isa::kReference;
  constexpr uint32_t kFeatures7 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if ((b & kFeatures7) != kFeatures7 || (saved & kZmmState) != kZmmState) return Isa::kAvx2;
  return Isa::kAvx512;
}

bool DetectAvx512Vnni() {
  uint32_t a, b, c, d;
  return Detect() == Isa::kAvx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (c & bit_AVX512VNNI) != 0;
}

std::atomic<Isa>& Chosen() {
  static std::atomic<Isa> isa = Detect();
  return isa;
}

}  // namespace

Isa ActiveIsa() { return Chosen().load(std::memory_order_relaxed); }

bool cpu::HasAvx512Vnni() {
  static const bool has = DetectAvx512Vnni();
  return has;
}

void SelectIsa(std::string_view name) {
  const Isa best = Detect();
  if (name == "auto") {
    Chosen().store(best);
    return;
  }
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512}) {
    if (name != Name(isa)) continue;
    if (isa > best) throw Invalid("--cpu-isa {}: this CPU has only {}", name, Name(best));
    Chosen().store(isa);
    return;
  }
  throw Invalid("--cpu-isa {}: want auto, reference, avx2 or avx512", name);
}

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace switchyard::kernels
