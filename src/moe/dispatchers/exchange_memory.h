// The symmetric memory of an exchange, listed by buffer. It is allocated by this list and logged at
// startup. Tests compare it with the memory that a run touches.
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
  // Equally sized slots, one per batch in flight.
  struct Part {
    std::string name;
    int slots = 1;
    std::vector<Buffer> buffers;  // buffers of one slot
    size_t slot_bytes() const;
  };
  std::vector<Part> parts;

  size_t bytes() const;
  // For example "94.1 MiB: deepep normal 2 × (rows 32.0 MiB, …)".
  std::string Describe() const;
};

// Returns the startup log line with the exchange memory per rank. It lists the buffers if the
// backend reports them. Throws the errors of MoeSymmetricBytes.
std::string DescribeExchangeMemory(const MoeOptions& options, const MoeShape& shape,
                                   const MeshShape& mesh, const MoeBackends* backends = nullptr);

}  // namespace switchyard
