// Checksums of the weights that the ranks hold in memory.
#pragma once

#include <vector>

#include "comm/device/communicator.h"
#include "engine/request.h"
#include "model/weights.h"

namespace switchyard {

// Applies GetWeightChecksums of `messages`. Each rank computes a checksum of the float32 values of
// each of its matrices and vectors: FNV-1a over their bits, so values that are equal bit for bit
// have equal checksums in every format. Returns the answers on rank 0 and nothing on other ranks.
// Collective; every rank has the same messages. `weights`: null on all ranks or on none; null: the
// answers are refusals.
std::vector<EngineMessage> ApplyToWeights(const std::vector<ControlMessage>& messages,
                                          const ModelWeights* weights, RankComm& comm);

}  // namespace switchyard
