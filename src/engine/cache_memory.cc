#include "engine/cache_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace switchyard {
namespace {

void Release(std::span<KvStorage* const> caches) {
  for (KvStorage* cache : caches) cache->Release();
}

// Returns why there is no memory for the caches; empty: there is.
std::string Restore(std::span<KvStorage* const> caches) {
  try {
    for (KvStorage* cache : caches) cache->Restore();
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return error.what();
  }
}

// The first rank of the group with `failed`; −1: none. Collective.
int FirstFailed(bool failed, Communicator& group) {
  const uint8_t mine = failed ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(group.size()));
  group.AllGather(&mine, all.data(), sizeof mine);
  const auto first = std::ranges::find(all, uint8_t{1});
  return first == all.end() ? -1 : static_cast<int>(first - all.begin());
}

std::string Change(bool release, std::span<KvStorage* const> caches, RankComm& comm) {
  Communicator& group = *comm.tp;
  const bool refused = caches.empty() || std::ranges::any_of(caches, [](auto* cache) {
                         return !cache->releasable();
                       });
  if (FirstFailed(refused, group) >= 0) return "the memory of the cache cannot be released alone";
  if (release) {
    Release(caches);
    return "";
  }
  std::string error = Restore(caches);
  const int failed = FirstFailed(!error.empty(), group);
  if (failed < 0) return "";
  Release(caches);
  if (!error.empty()) LOG_WARNING("no memory for the cache: {}", error);
  return failed == comm.mesh.rank()
             ? fmt::format("rank {}: {}", failed, error)
             : fmt::format("rank {} has no memory for its cache; see its log", failed);
}

}  // namespace

std::vector<EngineMessage> ApplyToCaches(const std::vector<ControlMessage>& messages,
                                         std::span<KvStorage* const> caches, RankComm& comm) {
  std::vector<EngineMessage> answers;
  for (const ControlMessage& message : messages) {
    const auto* change = std::get_if<ChangeCache>(&message);
    if (!change) continue;
    CacheChanged done{.ticket = change->ticket, .error = Change(change->release, caches, comm)};
    if (comm.mesh.rank() == 0) answers.emplace_back(std::move(done));
  }
  return answers;
}

}  // namespace switchyard
