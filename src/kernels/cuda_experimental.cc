#include "kernels/cuda_experimental.h"

#include <algorithm>
#include <cstddef>

#include "core/error.h"

namespace switchyard::kernels {

CudaExperimental ParseCudaExperimental(std::string_view names) {
  CudaExperimental parts;
  if (names.empty()) return parts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string_view name = names.substr(begin, end - begin);
    if (name == "fused-decode") {
      parts.fused_decode = true;
    } else if (name == "w4a16") {
      parts.w4a16 = true;
    } else {
      throw Invalid("--cuda-experimental: '{}' is no such part; want fused-decode or w4a16", name);
    }
    begin = end + 1;
  }
  return parts;
}

}  // namespace switchyard::kernels
