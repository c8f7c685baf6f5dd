// Releases of the memory of the KV caches, on request of the front.
#pragma once

#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "engine/request.h"
#include "model/kv_storage.h"

namespace switchyard {

// Applies ChangeCache of `messages` to the caches of this rank: that of the model, and of a draft
// model. If a rank cannot allocate its memory again, the memory of all ranks stays free. Returns
// the answers on rank 0 and nothing on other ranks. Collective over the ranks of a pipeline stage;
// every rank has the same messages, and calls it while no pass is in flight, after the engine has
// dropped all requests and prefixes (RankEngine::Apply).
std::vector<EngineMessage> ApplyToCaches(const std::vector<ControlMessage>& messages,
                                         std::span<KvStorage* const> caches, RankComm& comm);

}  // namespace switchyard
