// Conversion of an expert's weights to the format of the GPU's grouped GEMMs, and their upload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "moe/cuda/runners/expert_weights.h"

namespace switchyard::cuda {

// Sizes in bytes of a matrix on the device.
struct MatrixBytes {
  int64_t data = 0, scales = 0;
};
// Bytes of a matrix of `parts` parts [n, k], stacked along n.
MatrixBytes BytesOfMatrix(int64_t parts, int64_t n, int64_t k, ElementType type,
                          std::optional<W4A16Format> packed);

// Used by one thread at a time, on the current GPU of that thread. Reuses its staging memory.
class ExpertUploader {
 public:
  // Copies host memory to the device. The host memory may change as soon as the call returns.
  using Copy = std::function<void(std::byte* to, const void* from, int64_t bytes)>;

  // `threads`: number of threads that convert weights.
  ExpertUploader(Copy copy, int threads) : copy_(std::move(copy)), pool_(threads) {}

  // Uploads an expert to a slot. If the layer has biases and the expert has none, its biases are
  // zeros.
  void Upload(const kernels::ExpertWeights& expert, const ExpertArithmetic& arithmetic,
              const ExpertSlot& slot);
  // Uploads the view's rows, contiguous and converted to `type`.
  void UploadRows(const WeightView& w, ElementType type, std::byte* to);

 private:
  using Parts = std::span<const WeightView* const>;
  void UploadMatrix(Parts parts, ElementType type, std::optional<W4A16Format> packed,
                    std::byte* data, std::byte* scales);
  void UploadBlockScales(const WeightView& w, std::byte* to);
  void UploadBias(std::span<const float* const> parts, int64_t n, std::byte* to);
  std::byte* Staging(int64_t bytes);

  const Copy copy_;
  ThreadPool pool_;
  std::vector<std::byte> staging_;
  std::vector<float> floats_;
};

}  // namespace switchyard::cuda
