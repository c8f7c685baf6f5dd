// What one rank computes with: a device, and its groups' collectives in that device's memory.
#pragma once

#include <memory>

#include "comm/device/collectives.h"
#include "comm/device/communicator.h"
#include "kernels/device.h"
#include "kernels/draw_params.h"
#include "model/model.h"
#include "moe/device_layer.h"

namespace switchyard {

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual kernels::Device& device() = 0;
  virtual const RankGroups& groups() = 0;
  // Tokens from logits; where they are drawn on the device.
  virtual bool draws() const { return false; }
  virtual void Draw(const kernels::DrawParams&) {}
  // On a device that is no CPU: what its layers of experts share. Outlived by this.
  virtual std::unique_ptr<DeviceMoe> MakeMoe(const MoeOptions&, const MoeShape&) { return nullptr; }
};

// The CPU's threads, or the GPU that `options` name; borrows `comm` and `pool`. Collective: all
// ranks of the world, in one order.
std::unique_ptr<RankDevice> MakeRankDevice(const ModelConfig& config, const ModelOptions& options,
                                           RankComm& comm, ThreadPool& pool);

// A GPU's part of it (cuda/, no_cuda/).
std::unique_ptr<RankDevice> MakeCudaRankDevice(const ModelConfig& config,
                                               const ModelOptions& options, RankComm& comm);

// Peer memory of a rank there: what GpuBytesPerRank says.
size_t CudaPeerBytes(const ModelConfig& config, const ModelOptions& options,
                     const MeshShape& shape);

// The experts' part of a model's shape.
MoeShape MoeShapeOf(const ModelConfig& config, int64_t max_tokens);

}  // namespace switchyard
