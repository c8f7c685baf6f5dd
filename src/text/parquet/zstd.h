// Decompression of Zstandard data (RFC 8878).
#pragma once

#include <cstdint>
#include <vector>

#include "text/parquet/cursor.h"

namespace switchyard::parquet {

// Returns the `bytes` bytes that the frames at `in` decompress to. Checksums are not compared.
// Throws Error kInvalid that begins with in.where(): malformed data, frames with a dictionary,
// another size.
std::vector<uint8_t> DecompressZstd(Cursor in, uint64_t bytes);

}  // namespace switchyard::parquet
