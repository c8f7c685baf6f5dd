#include "engine/cpu_binding.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"

namespace switchyard {
namespace {

constexpr const char* kFlag = "--cpu-bind";

// A key that is equal for all processes of one machine, including those in containers, and differs
// between machines.
std::string MachineName() {
  std::string name;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> name) return name;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

uint64_t KeyOf(const CpuList& allowed) {
  return HashOf(MachineName() + "/" + FormatCpuList(allowed));
}

CpuBinding BindToList(CpuList cpus, const CpuList& allowed, int32_t threads_per_rank) {
  for (const int cpu : cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu))
      throw Invalid("{}: CPU {} is outside this process's CPU affinity mask; want CPUs of {}",
                    kFlag, cpu, FormatCpuList(allowed));
  }
  if (threads_per_rank > 0) cpus.resize(threads_per_rank);
  CpuBinding binding{.threads = static_cast<int>(cpus.size())};
  binding.cpus = std::move(cpus);
  binding.taken = CpuReservation::Take(binding.threads, binding.cpus);
  if (!binding.taken)
    LOG_WARNING("{}: another server has also pinned threads to some of CPUs {}", kFlag,
                FormatCpuList(binding.cpus));
  return binding;
}

}  // namespace

std::vector<CpuList> ParseCpuBind(const std::string& text, int32_t threads_per_rank,
                                  int ranks_of_host) {
  std::vector<CpuList> parts;
  if (text == "auto" || text == "none") return parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    parts.push_back(ParseCpuList(kFlag, part));
    const auto size = static_cast<int32_t>(parts.back().size());
    if (size < threads_per_rank)
      throw Invalid("{}: '{}' has {} CPUs but --cpu-threads-per-rank needs {}", kFlag, part, size,
                    threads_per_rank);
    begin = end + 1;
  }
  if (std::ssize(parts) != ranks_of_host)
    throw Invalid(
        "{} {}: lists CPUs of {} ranks, but this host has {} ranks; want auto, none, or one list "
        "per rank, separated by |, like 0-3|4-7",
        kFlag, text, parts.size(), ranks_of_host);
  CpuList all;
  for (const CpuList& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  if (const auto twice = std::adjacent_find(all.begin(), all.end()); twice != all.end())
    throw Invalid("{} {}: CPU {} is listed for two ranks; want each CPU once", kFlag, text, *twice);
  return parts;
}

std::string CpuBindOfEnvironment() {
  const char* value = std::getenv("SGLANG_CPU_OMP_THREADS_BIND");
  const bool given = value != nullptr && *value != '\0';
  if (given && std::string_view(value) != "all") return value;
  const char* affinity = std::getenv("SGLANG_SET_CPU_AFFINITY");
  if (given || affinity == nullptr || *affinity == '\0') return "auto";
  for (const std::string_view on : {"1", "true", "True", "yes", "y", "on"})
    if (affinity == on) return "auto";
  for (const std::string_view off : {"0", "false", "False", "no", "n", "off"})
    if (affinity == off) return "none";
  throw Invalid("environment variable SGLANG_SET_CPU_AFFINITY={}: want true or false", affinity);
}

CpuBinding BindToShare(const CpuList& allowed, int index, int count, int32_t threads_per_rank,
                       const std::filesystem::path& root) {
  const CpuList share = PartitionCpus(allowed, index, count, root);
  CpuBinding binding{.threads = threads_per_rank > 0 ? threads_per_rank
                                                     : std::max(1, static_cast<int>(share.size()))};
  if (share.empty() || std::ssize(share) < binding.threads) return binding;
  binding.taken = CpuReservation::Take(binding.threads, share, root);
  if (binding.taken) {
    binding.cpus = binding.taken->cpus();
  } else {
    LOG_INFO(
        "threads are not pinned: other servers, or the ranks that these replace, hold CPUs "
        "among {} ({})",
        FormatCpuList(share), kFlag);
  }
  return binding;
}

PlaceAmongEqual FindPlace(std::span<const uint64_t> keys, int self) {
  PlaceAmongEqual place;
  for (int rank = 0; rank < std::ssize(keys); ++rank) {
    if (keys[rank] != keys[self]) continue;
    if (rank < self) ++place.index;
    ++place.count;
  }
  return place;
}

namespace {

CpuList WithoutFirst(const CpuList& cpus, int count) {
  if (std::ssize(cpus) <= count) return cpus;
  return {cpus.begin() + count, cpus.end()};
}

// The host thread of a GPU runs on any CPU. The ranks on CPUs leave one CPU to each of these
// threads, which launch kernels while the CPUs compute experts.
CpuBinding BindBesideGpus(const EngineConfig& config, const EnginePlan& plan,
                          const CpuList& allowed, int rank) {
  const MeshShape& mesh = config.mesh;
  if (plan.OnGpu(mesh, rank)) return {.threads = plan.threads_per_rank};
  return BindToShare(WithoutFirst(allowed, mesh.token_ranks()), rank - mesh.token_ranks(),
                     mesh.expert_ranks, config.threads_per_rank);
}

}  // namespace

CpuBinding BindRank(const EngineConfig& config, const EnginePlan& plan, Communicator& all) {
  const CpuList allowed = AllowedCpus();
  const uint64_t mine = KeyOf(allowed);
  std::vector<uint64_t> keys(all.size());
  all.AllGather(&mine, keys.data(), sizeof mine);

  const auto parts = ParseCpuBind(config.cpu_bind, config.threads_per_rank, plan.ranks_of_host);
  CpuBinding binding{.threads = plan.threads_per_rank};
  if (!parts.empty()) {
    binding = BindToList(parts[all.rank() % plan.ranks_of_host], allowed, config.threads_per_rank);
  } else if (config.cpu_bind == "auto" && plan.host_experts) {
    binding = BindBesideGpus(config, plan, allowed, all.rank());
  } else if (config.cpu_bind == "auto" && !plan.cuda) {
    const PlaceAmongEqual place = FindPlace(keys, all.rank());
    binding = BindToShare(allowed, place.index, place.count, config.threads_per_rank);
  }
  LOG_DEBUG("{} threads{}{}", binding.threads, binding.cpus.empty() ? "" : " on CPUs ",
            FormatCpuList(binding.cpus));
  return binding;
}

}  // namespace switchyard
