// fmt, with its formatting engine taken from the library alone. In fmt 9 spdlog and format_to()
// instantiate all of it in every object that logs: 3 to 4 s of compilation each.
#pragma once

#include <fmt/format.h>

#include <string>

#if FMT_VERSION < 100000 && defined(__GNUC__) && !defined(__clang__)
// Compiled into libfmt; the header leaves the declaration out because of clang (fmt issue 2377).
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<buffer_context<char>>, locale_ref);
}
FMT_END_NAMESPACE
#endif
