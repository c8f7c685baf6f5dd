// For tests: fewer random cases in builds with a sanitizer.
#pragma once

namespace switchyard {

// Whether the source is compiled with a sanitizer. Such code takes 3 to 20 times as long. So tests
// compute all their kinds of cases, but fewer random ones of each kind. Other builds compute all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// `count`, or a `part`-th of it with a sanitizer, rounded up.
template <typename T>
constexpr T FewerIfSanitized(T count, T part = 2) {
  return kSanitized ? (count + part - 1) / part : count;
}

}  // namespace switchyard
