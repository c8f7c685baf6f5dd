#include "kernels/cuda_experimental.h"

#include <ranges>

#include "core/error.h"

namespace switchyard::kernels {

CudaExperimental ParseCudaExperimental(std::string_view names) {
  CudaExperimental parts;
  if (names.empty()) return parts;
  for (const auto part : std::views::split(names, ',')) {
    const std::string_view name(part.begin(), part.end());
    if (name != "fused-decode")
      throw Invalid("--cuda-experimental: '{}' is no such part; want fused-decode", name);
    parts.fused_decode = true;
  }
  return parts;
}

}  // namespace switchyard::kernels
