// wgmma for the shapes in use. All accumulator registers are operands, so each shape is a separate
// overload, selected by the array's size. M is 64; a step along K is 32 bytes of each row of both
// operands.
#pragma once

#include <cstdint>

namespace switchyard::cuda::ptx {

#define SWITCHYARD_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SWITCHYARD_NAMES_16 \
  SWITCHYARD_NAMES_8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SWITCHYARD_NAMES_24 \
  SWITCHYARD_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SWITCHYARD_NAMES_32 \
  SWITCHYARD_NAMES_24       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SWITCHYARD_NAMES_40 \
  SWITCHYARD_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SWITCHYARD_NAMES_48 \
  SWITCHYARD_NAMES_40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SWITCHYARD_NAMES_64 \
  SWITCHYARD_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SWITCHYARD_NAMES_80 \
  SWITCHYARD_NAMES_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SWITCHYARD_NAMES_96 \
  SWITCHYARD_NAMES_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SWITCHYARD_NAMES_128                                                                     \
  SWITCHYARD_NAMES_96                                                                            \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define SWITCHYARD_SUMS_8(d, i)                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SWITCHYARD_SUMS_16(d, i) SWITCHYARD_SUMS_8(d, i), SWITCHYARD_SUMS_8(d, i + 8)
#define SWITCHYARD_SUMS_24(d, i) SWITCHYARD_SUMS_16(d, i), SWITCHYARD_SUMS_8(d, i + 16)
#define SWITCHYARD_SUMS_32(d, i) SWITCHYARD_SUMS_16(d, i), SWITCHYARD_SUMS_16(d, i + 16)
#define SWITCHYARD_SUMS_40(d, i) SWITCHYARD_SUMS_32(d, i), SWITCHYARD_SUMS_8(d, i + 32)
#define SWITCHYARD_SUMS_48(d, i) SWITCHYARD_SUMS_32(d, i), SWITCHYARD_SUMS_16(d, i + 32)
#define SWITCHYARD_SUMS_64(d, i) SWITCHYARD_SUMS_32(d, i), SWITCHYARD_SUMS_32(d, i + 32)
#define SWITCHYARD_SUMS_80(d, i) SWITCHYARD_SUMS_64(d, i), SWITCHYARD_SUMS_16(d, i + 64)
#define SWITCHYARD_SUMS_96(d, i) SWITCHYARD_SUMS_64(d, i), SWITCHYARD_SUMS_32(d, i + 64)
#define SWITCHYARD_SUMS_128(d, i) SWITCHYARD_SUMS_64(d, i), SWITCHYARD_SUMS_64(d, i + 64)

// d [64, 2 · count] (+)= a [64, K] · b [2 · count, K]ᵀ; both operands in shared memory.
#define SWITCHYARD_MULTIPLY(name, count, shape, a_name, b_name, add_name, last)              \
  __device__ __forceinline__ void name(float(&d)[count], uint64_t a, uint64_t b, bool add) { \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_name                            \
                 ", 0;\n\twgmma.mma_async.sync.aligned." shape " {" SWITCHYARD_NAMES_##count \
                 "}, " a_name ", " b_name ", p, " last ";\n\t}"                              \
                 : SWITCHYARD_SUMS_##count(d, 0)                                             \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                              \
  }
#define SWITCHYARD_MULTIPLY_FP8(n, count, a_name, b_name, add_name)                             \
  SWITCHYARD_MULTIPLY(WgmmaFp8, count, "m64n" #n "k32.f32.e4m3.e4m3", a_name, b_name, add_name, \
                      "1, 1")
#define SWITCHYARD_MULTIPLY_BF16(n, count, a_name, b_name, add_name)                             \
  SWITCHYARD_MULTIPLY(WgmmaBf16, count, "m64n" #n "k16.f32.bf16.bf16", a_name, b_name, add_name, \
                      "1, 1, 0, 0")

SWITCHYARD_MULTIPLY_FP8(16, 8, "%8", "%9", "%10")
SWITCHYARD_MULTIPLY_FP8(32, 16, "%16", "%17", "%18")
SWITCHYARD_MULTIPLY_FP8(48, 24, "%24", "%25", "%26")
SWITCHYARD_MULTIPLY_FP8(64, 32, "%32", "%33", "%34")
SWITCHYARD_MULTIPLY_FP8(80, 40, "%40", "%41", "%42")
SWITCHYARD_MULTIPLY_FP8(96, 48, "%48", "%49", "%50")
SWITCHYARD_MULTIPLY_FP8(128, 64, "%64", "%65", "%66")
SWITCHYARD_MULTIPLY_FP8(160, 80, "%80", "%81", "%82")
SWITCHYARD_MULTIPLY_FP8(192, 96, "%96", "%97", "%98")

SWITCHYARD_MULTIPLY_BF16(16, 8, "%8", "%9", "%10")
SWITCHYARD_MULTIPLY_BF16(32, 16, "%16", "%17", "%18")
SWITCHYARD_MULTIPLY_BF16(64, 32, "%32", "%33", "%34")
SWITCHYARD_MULTIPLY_BF16(96, 48, "%48", "%49", "%50")
SWITCHYARD_MULTIPLY_BF16(128, 64, "%64", "%65", "%66")
SWITCHYARD_MULTIPLY_BF16(160, 80, "%80", "%81", "%82")
SWITCHYARD_MULTIPLY_BF16(192, 96, "%96", "%97", "%98")
SWITCHYARD_MULTIPLY_BF16(256, 128, "%128", "%129", "%130")

// d [64, 2 · count] (+)= a [64, 16] · b [16, 2 · count] in bf16; a in registers with mma.sync's
// layout. b is MN-major: the reduction runs over its rows.
#define SWITCHYARD_MULTIPLY_COLUMNS(n, count, a_names, b_name, add_name)                    \
  __device__ __forceinline__ void WgmmaBf16MnMajor(float(&d)[count], const uint32_t(&a)[4], \
                                                   uint64_t b, bool add) {                  \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_name                           \
                 ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n                             \
                 "k16.f32.bf16.bf16 {" SWITCHYARD_NAMES_##count "}, {" a_names "}, " b_name \
                                                                ", p, 1, 1, 1;\n\t}"        \
                 : SWITCHYARD_SUMS_##count(d, 0)                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                      \
                   "r"(static_cast<int>(add)));                                             \
  }
#define SWITCHYARD_NAMES_4 "%0, %1, %2, %3"
#define SWITCHYARD_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
SWITCHYARD_MULTIPLY_COLUMNS(8, 4, "%4, %5, %6, %7", "%8", "%9")
SWITCHYARD_MULTIPLY_COLUMNS(64, 32, "%32, %33, %34, %35", "%36", "%37")
SWITCHYARD_MULTIPLY_COLUMNS(128, 64, "%64, %65, %66, %67", "%68", "%69")
SWITCHYARD_MULTIPLY_COLUMNS(256, 128, "%128, %129, %130, %131", "%132", "%133")
#undef SWITCHYARD_SUMS_4
#undef SWITCHYARD_NAMES_4
#undef SWITCHYARD_MULTIPLY_COLUMNS

// d [64, 2 · count] (+)= a [64, 16] · b [2 · count, 16]ᵀ in bf16; a in registers with mma.sync's
// layout.
#define SWITCHYARD_MULTIPLY_REGISTERS(n, count, a_names, b_name, add_name)                       \
  __device__ __forceinline__ void WgmmaBf16(float(&d)[count], const uint32_t(&a)[4], uint64_t b, \
                                            bool add) {                                          \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_name                                \
                 ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n                                  \
                 "k16.f32.bf16.bf16 {" SWITCHYARD_NAMES_##count "}, {" a_names "}, " b_name      \
                                                                ", p, 1, 1, 0;\n\t}"             \
                 : SWITCHYARD_SUMS_##count(d, 0)                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                   "r"(static_cast<int>(add)));                                                  \
  }
SWITCHYARD_MULTIPLY_REGISTERS(16, 8, "%8, %9, %10, %11", "%12", "%13")
SWITCHYARD_MULTIPLY_REGISTERS(32, 16, "%16, %17, %18, %19", "%20", "%21")
SWITCHYARD_MULTIPLY_REGISTERS(64, 32, "%32, %33, %34, %35", "%36", "%37")
SWITCHYARD_MULTIPLY_REGISTERS(96, 48, "%48, %49, %50, %51", "%52", "%53")
SWITCHYARD_MULTIPLY_REGISTERS(128, 64, "%64, %65, %66, %67", "%68", "%69")
SWITCHYARD_MULTIPLY_REGISTERS(160, 80, "%80, %81, %82, %83", "%84", "%85")
SWITCHYARD_MULTIPLY_REGISTERS(192, 96, "%96, %97, %98, %99", "%100", "%101")
#undef SWITCHYARD_MULTIPLY_REGISTERS

// d [64, 256] (+)= a [64, 16] · b [256, 16]ᵀ in bf16; both operands in shared memory. An operand with
// "columns" is MN-major: the reduction runs over its rows in memory.
template <bool kColumnsA, bool kColumnsB>
__device__ __forceinline__ void WgmmaBf16Majors(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SWITCHYARD_NAMES_128
      "}, %128, %129, p, 1, 1, %131, %132;\n\t}"
      : SWITCHYARD_SUMS_128(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kColumnsA ? 1 : 0), "n"(kColumnsB ? 1 : 0));
}

#undef SWITCHYARD_MULTIPLY_BF16
#undef SWITCHYARD_MULTIPLY_FP8
#undef SWITCHYARD_MULTIPLY
#undef SWITCHYARD_SUMS_128
#undef SWITCHYARD_NAMES_128
#undef SWITCHYARD_SUMS_96
#undef SWITCHYARD_NAMES_96
#undef SWITCHYARD_SUMS_80
#undef SWITCHYARD_NAMES_80
#undef SWITCHYARD_SUMS_64
#undef SWITCHYARD_NAMES_64
#undef SWITCHYARD_SUMS_48
#undef SWITCHYARD_NAMES_48
#undef SWITCHYARD_SUMS_40
#undef SWITCHYARD_NAMES_40
#undef SWITCHYARD_SUMS_32
#undef SWITCHYARD_NAMES_32
#undef SWITCHYARD_SUMS_24
#undef SWITCHYARD_NAMES_24
#undef SWITCHYARD_SUMS_16
#undef SWITCHYARD_NAMES_16
#undef SWITCHYARD_SUMS_8
#undef SWITCHYARD_NAMES_8

}  // namespace switchyard::cuda::ptx
