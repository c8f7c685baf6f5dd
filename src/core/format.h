// Includes fmt without instantiating its formatting engine, which is compiled into the library.
// Otherwise, in fmt 9, spdlog and format_to() instantiate the whole engine in every object file
// that logs: 3 to 4 s of compilation each.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>

#if FMT_VERSION < 100000 && defined(__GNUC__) && !defined(__clang__)
// libfmt contains this instantiation. fmt's header omits the declaration because of clang (fmt
// issue 2377).
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<buffer_context<char>>, locale_ref);
}
FMT_END_NAMESPACE
#endif

namespace switchyard {

// Joins the elements of `range`, strings or integers, with `separator`. Replaces fmt::join(), which
// costs 2 to 3 s of compilation for each type of range.
template <typename Range>
std::string Joined(const Range& range, std::string_view separator) {
  std::string joined;
  bool first = true;
  for (const auto& element : range) {
    if (!first) joined += separator;
    first = false;
    if constexpr (std::is_convertible_v<decltype(element), std::string_view>) {
      joined += element;
    } else {
      joined += std::to_string(element);
    }
  }
  return joined;
}

}  // namespace switchyard
