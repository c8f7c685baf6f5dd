#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/host/spawn.h"
#include "comm/net/file_descriptor.h"
#include "core/error.h"
#include "core/wire.h"

namespace switchyard {
namespace {

constexpr size_t kMaxFds = 4096;
constexpr uint64_t kSpecMagic = 0x434550534b4e4152;  // "RANKSPEC"

Error NotStartedByFront(std::string_view why) {
  return Error(ErrorKind::kInvalid, fmt::format("a rank process cannot start alone: {}", why),
               "ranks are started by 'switchyard serve' and 'switchyard train'");
}

// Parses the value of SWITCHYARD_RANK_FDS: "5,7", or with more descriptors "5,7,8,9".
std::vector<int> ParseFds(std::string_view text) {
  std::vector<int> fds;
  const char* next = text.data();
  const char* const end = text.data() + text.size();
  for (bool more = true; more;) {
    int fd = -1;
    const auto parsed = std::from_chars(next, end, fd);
    more = parsed.ptr != end && *parsed.ptr == ',';
    if (parsed.ec != std::errc() || fd < 0 || (!more && parsed.ptr != end)) {
      throw NotStartedByFront(fmt::format("{} is malformed", kRankFdsVariable));
    }
    fds.push_back(fd);
    next = parsed.ptr + 1;
  }
  if (fds.size() < 2 || fds.size() > kMaxFds) {
    throw NotStartedByFront(fmt::format("{} is malformed", kRankFdsVariable));
  }
  return fds;
}

}  // namespace

std::string RankFdsEntry(const std::vector<int>& fds) {
  return fmt::format("{}={}", kRankFdsVariable, Joined(fds, ","));
}

int WriteRankSpec(const RankSpec& spec, int parent_pid) {
  WireWriter writer;
  writer.Put(kSpecMagic);
  writer.Put(parent_pid);
  writer.Put(spec.rank);
  writer.Put(spec.world);
  writer.Put(spec.spare);
  writer.Put(spec.last_epoch);
  writer.Put(spec.spec);
  writer.Put(spec.control_endpoint);
  writer.Put(spec.network ? spec.network->Encode() : std::string());
  const std::string bytes = writer.Take();

  FileDescriptor file = WriteMemoryFile("switchyard-rank-spec", bytes);
  if (file.get() < 0) throw Resource("cannot create the spec of a rank: {}", std::strerror(errno));
  return file.Release();
}

RankSpec InheritRankSpec() {
  const char* variable = std::getenv(kRankFdsVariable);
  if (variable == nullptr) throw NotStartedByFront(fmt::format("no {}", kRankFdsVariable));
  const std::vector<int> fds = ParseFds(variable);
  const int spec_fd = fds[0], arena_fd = fds[1];
  const std::optional<std::string> bytes = ReadMemoryFile(spec_fd);
  if (!bytes) throw NotStartedByFront("its spec is missing or cannot be read");
  RankSpec spec;
  int parent_pid = 0;
  try {
    WireReader reader(*bytes);
    if (reader.Get<uint64_t>() != kSpecMagic) throw Invalid("not a rank spec");
    parent_pid = reader.Get<int>();
    spec.rank = reader.Get<int>();
    spec.world = reader.Get<int>();
    spec.spare = reader.Get<int>();
    spec.last_epoch = reader.Get<uint32_t>();
    spec.spec = reader.GetString();
    spec.control_endpoint = reader.GetString();
    const std::string network = reader.GetString();
    if (!network.empty()) spec.network = TcpWorld::Decode(network);
  } catch (const Error&) {
    throw NotStartedByFront("its spec is malformed");
  }
  // The parent may have died before this process set its parent-death signal.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent_pid) {
    throw Error(ErrorKind::kPeer,
                fmt::format("rank {}: the parent (pid {}) is gone", spec.rank, parent_pid));
  }
  spec.arena = SharedArena::FromFd(arena_fd);
  const bool is_spare = spec.spare >= 0 && spec.spare < SharedArena::kMaxSpares;
  const bool is_rank = spec.spare < 0 && spec.rank >= 0 && spec.rank < spec.world;
  if (spec.arena->world() != spec.world || is_spare == is_rank) {
    throw NotStartedByFront("its spec does not match its shared memory");
  }
  // After the spec and the arena: the listener if there is a network, and the sockets of
  // KeptDescriptors if there are any.
  const size_t first = spec.network ? 3 : 2, ranks = is_spare ? spec.world : 1;
  if (fds.size() != first && fds.size() != first + 2 * ranks) {
    throw NotStartedByFront("its spec does not match its descriptors");
  }
  for (size_t i = first; i < fds.size(); i += 2)
    spec.kept.push_back(KeptDescriptors::FromFds(fds[i], fds[i + 1]));
  if (spec.network) {
    spec.listener = TcpListener(FileDescriptor(fds[2]));
    fcntl(fds[2], F_SETFD, FD_CLOEXEC);
  }
  // Child processes of this process must not inherit the descriptors.
  close(spec_fd);
  unsetenv(kRankFdsVariable);
  fcntl(arena_fd, F_SETFD, FD_CLOEXEC);
  return spec;
}

}  // namespace switchyard
