// Runtime dispatch of a loop to the widest vectors of this CPU. Only for loops that the compiler
// vectorises and whose result does not depend on the width. The kernels of src/kernels dispatch by
// kernels::Isa instead.
#pragma once

namespace switchyard::vector_width {

enum class Width { kBaseline, kAvx2, kAvx512 };

inline Width WidthOfCpu() {
  static const Width width = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return Width::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? Width::kAvx2 : Width::kBaseline;
  }();
  return width;
}

template <class Loop, class... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] auto RunAvx512(Args... args) {
  return Loop::Run(args...);
}

template <class Loop, class... Args>
[[gnu::target("avx2")]] auto RunAvx2(Args... args) {
  return Loop::Run(args...);
}

// Calls Loop::Run(args...). Loop must be local to its file. Run and everything it calls must be
// [[gnu::always_inline]], so that each copy is compiled for its own instruction set.
template <class Loop, class... Args>
auto RunWidest(Args... args) {
  switch (WidthOfCpu()) {
    case Width::kAvx512:
      return RunAvx512<Loop>(args...);
    case Width::kAvx2:
      return RunAvx2<Loop>(args...);
    case Width::kBaseline:
      break;
  }
  return Loop::Run(args...);
}

}  // namespace switchyard::vector_width
