// A file mapped into memory, read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/regular_file.h"

namespace switchyard {

// Unmapped on destruction. Immutable. The file must not change while it is mapped: a read past the
// end of a truncated file kills the process with SIGBUS.
struct MappedFile {
  MappedFile(std::string file_name, const uint8_t* bytes, size_t num_bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string name;
  const uint8_t* const data;
  const size_t size;
};

// Throws Error: kInvalid if the file is empty, kResource if it cannot be mapped.
std::shared_ptr<const MappedFile> MapFile(const RegularFile& file);

}  // namespace switchyard
