// Which part of a model a pipeline stage holds.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Layers [first_layer, last_layer) of the model; MTP modules are not counted, they live on the last
// stage, as do the final norm and the head. The first stage has the embedding; the last one has a
// copy of it where its MTP modules or a tied head need it.
struct StageRange {
  int64_t first_layer = 0;
  int64_t last_layer = -1;  // -1: the model's end
  bool first = true, last = true;
};

}  // namespace switchyard::train
