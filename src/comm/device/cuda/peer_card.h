// What ranks tell one another about their peer memory. Internal to comm/device/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace switchyard::cuda {

struct PeerCard {
  std::array<char, 40> host = {};    // changes with every boot: no two hosts have the same
  std::array<char, 32> bus_id = {};  // of the GPU, in words
  std::array<char, 64> process = {};
  int32_t device = 0;       // as its process counts
  bool exportable = false;  // whether `handle` is one: not every system has CUDA IPC
  uint64_t bytes = 0;
  std::byte* memory = nullptr;  // in its process
  cudaIpcMemHandle_t handle = {};
};

// The card of memory on the current device.
PeerCard MakeCard(std::byte* memory, size_t bytes);
std::string Describe(const PeerCard& card, int rank);  // "rank 3 (GPU 2, 0000:19:00.0)"

// Error kInvalid where a host has too many ranks, ranks that should share one (each
// `ranks_per_host`; 0: all) do not, or sizes differ.
void CheckCards(std::span<const PeerCard> cards, int ranks_per_host = 0);

}  // namespace switchyard::cuda
