// Parses arbitrary bytes as a file and as a header. The result must be ranges inside the file, or
// an Error.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "core/safetensors.h"

namespace {

void Parse(std::span<const uint8_t> head, uint64_t file_size) {
  try {
    for (const auto& [name, entry] : switchyard::ParseSafetensorsHeader(head, file_size, "input")) {
      CHECK(entry.begin <= entry.end);
      CHECK(entry.end <= file_size);
    }
  } catch (const switchyard::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parse({data, size}, size);
  if (size < 8) return 0;
  // Few mutations keep the header length valid. So the data is parsed again with the correct
  // length, and with data after the header.
  std::vector<uint8_t> fitting(data, data + size);
  const uint64_t length = size - 8;
  std::memcpy(fitting.data(), &length, sizeof length);
  Parse(fitting, size + 1024);
  return 0;
}
