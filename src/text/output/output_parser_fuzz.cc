// Parses arbitrary text in every format. The message must be the same for the whole text, for
// single bytes, and for pieces of other lengths. Byte 0 selects the format of calls, byte 1 the
// format of reasoning and whether the output is complete, byte 2 the lengths of the pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "text/output/output_test_message.h"

namespace switchyard {
namespace {

template <typename Format>
std::string NameAt(std::span<const Format> formats, size_t index) {
  index %= formats.size() + 1;
  return index == formats.size() ? "" : std::string(formats[index].name);
}

std::vector<std::string_view> Cut(std::string_view text, size_t length) {
  std::vector<std::string_view> pieces;
  for (size_t at = 0; at < text.size(); at += length) pieces.push_back(text.substr(at, length));
  return pieces;
}

}  // namespace
}  // namespace switchyard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace switchyard;  // NOLINT(google-build-using-namespace)
  if (size < 3) return 0;
  const ParseCase options{.calls = NameAt(CallFormats(), data[0]),
                          .reasoning = NameAt(ReasoningFormats(), data[1] / 2),
                          .prompt = {},
                          .complete = data[1] % 2 == 0};
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const ParsedMessage whole = ParsePieces(options, std::vector{text});
  for (const size_t length : {size_t{1}, size_t{2} + data[2] % 30}) {
    if (ParsePieces(options, Cut(text, length)) != whole) std::abort();
  }
  return 0;
}
