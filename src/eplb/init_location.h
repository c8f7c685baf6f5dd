// Initial expert placement when a server starts: --init-expert-location.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/types.h"
#include "moe/placement/placement.h"

namespace switchyard {

struct InitLocation {
  std::string location = "trivial";  // --init-expert-location
  int64_t num_layers = 0;            // layers of the model, including dense layers
  int num_logical = 0;
  int redundant = 0;               // --ep-num-redundant-experts
  std::string algorithm = "auto";  // --eplb-algorithm, used for recorded loads only
  RankTopology topology;           // used for recorded loads only
};

// One placement for each layer. `location` is "trivial", JSON text that begins with {, or a JSON,
// safetensors or PyTorch (.pt) file with
//   physical_to_logical_map  a row of expert ids, one for each slot, for each layer of the model,
//                            including dense layers, or one row for all; null (in tensors: −1 in
//                            the whole row) is the trivial placement
//   logical_count            otherwise: a recorded distribution (ReadLoads) of all layers, for
//                            which `algorithm` plans
// The result is equal on all ranks that read equal files. Error kInvalid names flag, file and
// layer; kNotFound names flag and file.
std::vector<ExpertPlacement> LoadPlacements(const InitLocation& init);

// Checks that all ranks have the same placements, which may differ because each rank reads the file
// of its own host. Collective. If the placements of any rank differ from those of rank 0, throws
// Error kInvalid on every rank. The message names the flag with its value `location`.
void CheckSamePlacements(const std::vector<ExpertPlacement>& placements,
                         const std::string& location, Communicator& world);

}  // namespace switchyard
