// Description of a rank's peer memory, exchanged between ranks. Internal to comm/device/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace switchyard::cuda {

struct PeerInfo {
  std::array<char, 40> host = {};    // boot id: unique per host and boot
  std::array<char, 32> bus_id = {};  // PCI bus id of the GPU, as text
  std::array<char, 64> process = {};
  int32_t device = 0;       // device index in its process
  bool exportable = false;  // whether `handle` is valid: not every system has CUDA IPC
  uint64_t bytes = 0;
  std::byte* memory = nullptr;  // address in its process
  cudaIpcMemHandle_t handle = {};
};

// Describes memory on the current device.
PeerInfo MakePeerInfo(std::byte* memory, size_t bytes);
std::string Describe(const PeerInfo& card, int rank);  // "rank 3 (GPU 2, 0000:19:00.0)"

// Error kInvalid if a host has too many ranks, if sizes differ, or if a group of `ranks_per_host`
// consecutive ranks (0: all ranks) spans hosts.
void CheckPeerInfos(std::span<const PeerInfo> cards, int ranks_per_host = 0);

}  // namespace switchyard::cuda
