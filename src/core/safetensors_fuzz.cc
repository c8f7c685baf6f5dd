// Parses arbitrary bytes as a header: they parse to ranges inside the file or throw an Error.
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "core/error.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const auto& [name, entry] :
         switchyard::ParseSafetensorsHeader({data, size}, size, "input")) {
      CHECK(entry.begin <= entry.end);
      CHECK(entry.end <= size);
    }
  } catch (const switchyard::Error&) {
  }
  return 0;
}
