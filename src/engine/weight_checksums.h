// Checksums of the weights that the ranks hold in memory.
#pragma once

#include <vector>

#include "comm/device/communicator.h"
#include "engine/request.h"
#include "model/model.h"

namespace switchyard {

// Applies GetWeightChecksums of `messages`. On CPUs, each rank computes a checksum of the float32
// values of each of its matrices and vectors: FNV-1a over their bits, so values that are equal bit
// for bit have equal checksums in every format. On GPUs, the checksum of each array is that of its
// 32-bit words in the device's memory, in the format of the kernels. Returns the answers on rank 0
// and nothing on other ranks. Collective; every rank has the same messages, and calls it between
// two passes. `model`: null on all ranks or on none; null, and with experts that move: the answers
// are refusals.
std::vector<EngineMessage> ApplyToWeights(const std::vector<ControlMessage>& messages, Model* model,
                                          RankComm& comm);

}  // namespace switchyard
