// Instruction set dispatch: CPUID reports the CPU's features, XCR0 the register state that the
// operating system saves.
#include <cpuid.h>

#include <atomic>
#include <string>
#include <string_view>

#include "core/error.h"
#include "kernels/cpu/amx/emulated_tiles.h"
#include "kernels/cpu/amx/permission.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"

namespace switchyard::kernels {
namespace {

uint64_t ReadXcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

Isa DetectVectors() {
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

// Requests tile permission from Linux if the CPU and XCR0 support AMX.
cpu::amx::AmxSupport DetectAmx() {
  constexpr uint32_t kBF16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr uint32_t kFeatures = kBF16 | kTile | kInt8;
  constexpr uint64_t kTileConfig = 1u << 17, kTileData = 1u << 18;
  constexpr uint64_t kTileState = kTileConfig | kTileData;
  uint32_t a, b, c, d;
  cpu::amx::AmxSupport facts;
  // Requires AVX-512 too, because all other kernels of Isa::kAmx are those of Isa::kAvx512.
  facts.cpu = DetectVectors() == Isa::kAvx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
              (c & bit_AVX512VNNI) != 0 && (d & kFeatures) == kFeatures;
  facts.saved = facts.cpu && (ReadXcr0() & kTileState) == kTileState;
  if (facts.saved) facts.refusal = cpu::amx::RequestTilePermission();
  return facts;
}

const cpu::amx::AmxSupport& DetectedAmxSupport() {
  static const cpu::amx::AmxSupport facts = DetectAmx();
  return facts;
}

Isa Detect() { return HasAmx() ? Isa::kAmx : DetectVectors(); }

bool DetectAvx512Vnni() {
  uint32_t a, b, c, d;
  return DetectVectors() == Isa::kAvx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (c & bit_AVX512VNNI) != 0;
}

bool IsAmd() {
  uint32_t a, b, c, d;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx;
}

bool DetectAvx512Vbmi() {
  uint32_t a, b, c, d;
  return DetectVectors() == Isa::kAvx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (c & bit_AVX512VBMI) != 0;
}

bool DetectAvx512BF16() {
  uint32_t a, b, c, d;
  return DetectVectors() == Isa::kAvx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a & bit_AVX512BF16) != 0;
}

std::atomic<Isa>& Chosen() {
  static std::atomic<Isa> isa = Detect();
  return isa;
}

}  // namespace

bool HasAmx() { return cpu::amx::AmxUnavailableReason(DetectedAmxSupport()).empty(); }

Isa ActiveIsa() { return Chosen().load(std::memory_order_relaxed); }

bool cpu::HasAvx512Vnni() {
  static const bool has = DetectAvx512Vnni();
  return has;
}

bool cpu::HasAvx512Vbmi() {
  static const bool has = DetectAvx512Vbmi();
  return has;
}

bool cpu::HasAvx512BF16() {
  static const bool has = DetectAvx512BF16();
  return has;
}

bool HasBFloat16Products(Isa isa) {
  return isa >= Isa::kAmx || (isa == Isa::kAvx512 && cpu::HasAvx512BF16());
}

bool HasFp8Products(Isa isa) {
  static const bool is_amd = IsAmd();
  return is_amd && isa >= Isa::kAvx512 && cpu::HasAvx512BF16() && cpu::HasAvx512Vbmi();
}

bool HasFourBitProducts(Isa isa) { return isa != Isa::kReference; }

Isa IsaOf(std::string_view name) {
  const Isa best = Detect();
  if (name == "auto") return best;
  using enum Isa;
  for (Isa isa : {kReference, kAvx2, kAvx512, kAmx, kAmxEmulated}) {
    if (name != Name(isa)) continue;
    const Isa least = isa == kAmxEmulated ? kAvx512 : isa;
    if (isa == kAmx && best != isa) {
      throw Invalid("--cpu-isa amx: {}; this process can use {}",
                    cpu::amx::AmxUnavailableReason(DetectedAmxSupport()), Name(best));
    }
    if (least > best) throw Invalid("--cpu-isa {}: this CPU supports only {}", name, Name(best));
    if (isa == kAmxEmulated && !cpu::HasAvx512Vnni()) {
      throw Invalid(
          "--cpu-isa {}: this CPU has no AVX512_VNNI, which int8 products of few rows need", name);
    }
    return isa;
  }
  throw Invalid("--cpu-isa {}: want auto, reference, avx2, avx512, amx or amx-emulated", name);
}

void SelectIsa(std::string_view name) {
  const Isa isa = IsaOf(name);
  if (isa == Isa::kAmxEmulated) cpu::amx::EmulateMissingTiles();
  Chosen().store(isa);
}

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kAmxEmulated:
      return "amx-emulated";
  }
  return "unknown";
}

}  // namespace switchyard::kernels
