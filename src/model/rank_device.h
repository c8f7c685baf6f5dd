// The compute device of one rank, and its groups' collectives on that device's memory.
#pragma once

#include <exception>
#include <memory>

#include "comm/device/collectives.h"
#include "comm/device/communicator.h"
#include "kernels/best_tokens.h"
#include "kernels/device.h"
#include "kernels/sample_params.h"
#include "model/options.h"
#include "model/stage_rows.h"
#include "moe/backend.h"

namespace switchyard {

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual kernels::Device& device() = 0;
  virtual const RankGroups& groups() = 0;
  // Whether the device can sample tokens from logits (Sample), and find the most probable ones.
  virtual bool samples() const { return false; }
  virtual void Sample(const kernels::SampleParams&) {}
  virtual void SelectBestTokens(const kernels::BestTokensParams&) {}
  // Carries the hidden rows of a pipeline stage. `lane`: ModelOptions::stage_rows, which outlives
  // the result. The result must not outlive this object.
  virtual std::unique_ptr<StageRows> MakeStageRows(MessageLane& lane) = 0;
  // Makes the backend of the rank's MoE layers. It must not outlive this object.
  virtual std::shared_ptr<MoeBackend> MakeMoe(const ModelOptions& options,
                                              const MoeShape& shape) = 0;
  // Ends the device's work that waits for other ranks without a timeout. Call it after an error,
  // before memory of the device is freed, which waits for this work. Later collectives fail.
  virtual void EndWaits() noexcept {}
};

// Calls RankDevice::EndWaits if an exception destroys the owner. The last member of an owner of
// memory of the device.
class EndOfWaits {
 public:
  explicit EndOfWaits(RankDevice& device) : device_(device) {}
  ~EndOfWaits() {
    if (std::uncaught_exceptions() > exceptions_) device_.EndWaits();
  }
  EndOfWaits(const EndOfWaits&) = delete;

 private:
  RankDevice& device_;
  const int exceptions_ = std::uncaught_exceptions();
};

// A device with the CPU's threads, or the GPU in `options`; borrows `comm` and `pool`. Collective
// over all ranks of the world, in the same order.
std::unique_ptr<RankDevice> MakeRankDevice(const ModelConfig& config, const ModelOptions& options,
                                           RankComm& comm, ThreadPool& pool);

// MakeRankDevice for a GPU. Defined in cuda/, or in no_cuda/ for builds without CUDA.
std::unique_ptr<RankDevice> MakeCudaRankDevice(const ModelConfig& config,
                                               const ModelOptions& options, RankComm& comm);

// Bytes of peer memory of a rank on a GPU, a part of GpuBytesPerRank. Not included are the hidden
// rows of stages.
size_t CudaPeerBytes(const ModelConfig& config, const ModelOptions& options,
                     const MeshShape& shape);

// Bytes of the hidden rows of the largest batch: the size of a place at the next pipeline stage.
size_t StageRowBytes(const ModelConfig& config, const ModelOptions& options);
// Bytes of a GPU's memory for the hidden rows of all passes in flight; 0 with one stage.
size_t StageRowsBytes(const ModelConfig& config, const ModelOptions& options,
                      const MeshShape& shape);

// The MoE dimensions of a model.
MoeShape MoeShapeOf(const ModelConfig& config, int64_t max_tokens);

}  // namespace switchyard
