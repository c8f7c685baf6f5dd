// The part of a model that a pipeline stage holds.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Layers [first_layer, last_layer) of the model, without MTP modules. MTP modules, the final norm
// and the head are on the last stage. The embedding is on the first stage. The last stage has a
// copy if MTP modules or a tied head need it.
struct StageRange {
  int64_t first_layer = 0;
  int64_t last_layer = -1;  // exclusive; -1: the number of layers
  bool first = true, last = true;
};

}  // namespace switchyard::train
