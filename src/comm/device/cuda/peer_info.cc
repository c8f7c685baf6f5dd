
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "comm/device/cuda/peer_memory.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {
namespace {

std::array<char, 40> HostId() {
  std::array<char, 40> id = {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!file.getline(id.data(), id.size())) gethostname(id.data(), id.size() - 1);
  return id;
}

}  // namespace

// Containers of one host have separate PID namespaces, so the id includes the namespace.
std::array<char, 64> ProcessName() {
  std::array<char, 64> id = {};
  const int pid = getpid();
  std::memcpy(id.data(), &pid, sizeof pid);
  const ssize_t ignored =
      readlink("/proc/self/ns/pid", id.data() + sizeof pid, id.size() - sizeof pid);
  static_cast<void>(ignored);
  return id;
}

PeerInfo MakePeerInfo(std::byte* memory, size_t bytes) {
  PeerInfo card = {.host = HostId(), .process = ProcessName(), .bytes = bytes, .memory = memory};
  Check(cudaGetDevice(&card.device), "reading the current GPU");
  Check(cudaDeviceGetPCIBusId(card.bus_id.data(), card.bus_id.size(), card.device),
        "reading the GPU's PCI bus id");
  card.exportable = cudaIpcGetMemHandle(&card.handle, memory) == cudaSuccess;
  if (!card.exportable) cudaGetLastError();
  return card;
}

std::string Describe(const PeerInfo& card) {
  const std::string stage = card.stage < 0 ? "" : fmt::format("stage {}, ", card.stage);
  return fmt::format("rank {} ({}GPU {}, {})", card.rank, stage, card.device, card.bus_id.data());
}

void CheckPeerInfos(std::span<const PeerInfo> cards, int ranks_per_host) {
  const size_t per_host = ranks_per_host > 0 ? ranks_per_host : cards.size();
  if (std::min(per_host, cards.size()) > kMaxPeers)
    throw Invalid("peer memory supports at most {} ranks, got {}", kMaxPeers,
                  std::min(per_host, cards.size()));
  for (size_t r = 1; r < cards.size(); ++r) {
    const size_t first = r / per_host * per_host;
    const int rank = cards[r].rank;
    if (std::strncmp(cards[first].host.data(), cards[r].host.data(), cards[0].host.size()) != 0) {
      throw Invalid(
          "ranks {} and {} are on different hosts: the GPUs of {} consecutive ranks need peer "
          "access to one another (give every host the same number of ranks, in order, "
          "with --nnodes)",
          cards[first].rank, rank, per_host);
    }
    if (cards[0].bytes != cards[r].bytes) {
      throw Invalid("rank {} has {} bytes of peer memory and rank {} {}: sizes must be equal", rank,
                    cards[r].bytes, cards[0].rank, cards[0].bytes);
    }
  }
}

}  // namespace switchyard::cuda
