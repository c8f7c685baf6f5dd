// Parses arbitrary bytes as a GGUF file. The result must be ranges inside the file, or an Error.
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "core/error.h"
#include "core/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const auto& [name, tensor] : switchyard::ParseGgufHeader({data, size}, "input").tensors) {
      CHECK(tensor.begin <= tensor.end);
      CHECK(tensor.end <= size);
    }
  } catch (const switchyard::Error&) {
  }
  return 0;
}
