// Requests that two servers compute: what the front does for the transfer of their caches.
#include <utility>

#include "core/error.h"
#include "server/front/front.h"
#include "server/front/open_generation.h"

namespace switchyard {

std::string KvKey::Text() const {
  return index == 0 ? fmt::format("room {}", room) : fmt::format("room {}.{}", room, index);
}

void Front::CheckTransfer(const GenerationSpec& spec) const {
  if (!transfers_) {
    if (spec.kv)
      throw ParameterError("bootstrap_room",
                           "is not supported: this server has no --disaggregation-mode");
    return;
  }
  if (!spec.kv && spec.measured)
    throw ParameterError(
        "bootstrap_room",
        fmt::format("is missing: this server only {} (--disaggregation-mode). Send requests to "
                    "/generate, /v1/completions, /v1/chat/completions, /v1/responses or "
                    "/v1/messages of a router with --prefill and --decode",
                    transfers_->role() == KvRole::kExport
                        ? "computes prompts"
                        : "continues prompts of a prefill worker"));
}

void Front::OpenTransfer(Open& open) {
  if (!open.spec.kv) return;
  open.kv_role = transfers_->role();
  // The other server matches stop strings. Its first token may complete one.
  if (open.kv_role == KvRole::kExport) open.stop = StopStrings({}, false);
  transfers_->Open(open.next.id, *open.spec.kv, std::ssize(open.spec.input_ids));
}

void Front::SendTransfer(uint64_t id, KvRole role, ControlMessage message) {
  std::lock_guard order(order_);
  {
    std::lock_guard lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end() || paused_ || lost_) return;
    Open& open = *found->second;
    if (open.ending || open.aborted || open.kv_role != role) return;
    if (!open.sent) {                                            // suspects run alone first
      if (role == KvRole::kImport) open.kv_role = KvRole::kOwn;  // the ranks compute the prompt
      return;
    }
  }
  link_.Send({std::move(message)});
}

void Front::StartImported(uint64_t id, RequestOutput first) {
  SendTransfer(id, KvRole::kImport, switchyard::StartImported{.id = id, .first = std::move(first)});
}

void Front::ReleaseKv(uint64_t id, const std::string& error) {
  SendTransfer(id, KvRole::kExport, switchyard::ReleaseKv{.id = id, .error = error});
}

void Front::WantKv(uint64_t id) { SendTransfer(id, KvRole::kExport, switchyard::WantKv{.id = id}); }

}  // namespace switchyard
