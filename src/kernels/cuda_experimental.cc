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
    if (name != "fused-decode")
      throw Invalid("--cuda-experimental: '{}' is no such part; want fused-decode", name);
    parts.fused_decode = true;
    begin = end + 1;
  }
  return parts;
}

}  // namespace switchyard::kernels
