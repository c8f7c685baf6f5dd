// What an exchange takes of a rank's symmetric memory, buffer by buffer: what is allocated, printed
// at start and held against what a run touches.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "moe/options.h"

namespace switchyard {

struct ExchangeMemory {
  struct Buffer {
    std::string name;
    size_t bytes = 0;
  };
  // Equal slots, one for each batch in flight.
  struct Part {
    std::string name;
    int slots = 1;
    std::vector<Buffer> buffers;  // of one slot
    size_t slot_bytes() const;
  };
  std::vector<Part> parts;

  size_t bytes() const;
  // "94.1 MiB: deepep normal 2 × (rows 32.0 MiB, …)"
  std::string Describe() const;
};

// A line for the log at start: what the exchange of these options takes of each rank, by buffer
// where the backend says so. Error kInvalid as from MoeSymmetricBytes.
std::string DescribeExchangeMemory(const MoeOptions& options, const MoeShape& shape,
                                   const MeshShape& mesh, const MoeBackends* backends = nullptr);

}  // namespace switchyard
