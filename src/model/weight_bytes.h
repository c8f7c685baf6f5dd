// Bytes of a rank's weights, by the module that they belong to.
#pragma once

#include <array>
#include <utility>

namespace switchyard {

// Doubles, so that absurd sizes do not overflow.
struct WeightBytes {
  double embedding = 0, attention = 0, dense = 0, router = 0, experts = 0, shared = 0, norms = 0,
         head = 0;

  double total() const {
    return embedding + attention + dense + router + experts + shared + norms + head;
  }
  std::array<std::pair<const char*, double>, 8> Parts() const {
    return {{{"embedding", embedding},
             {"attention", attention},
             {"dense", dense},
             {"router", router},
             {"experts", experts},
             {"shared experts", shared},
             {"norms", norms},
             {"head", head}}};
  }
};

}  // namespace switchyard
