// Decompression of Parquet pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/parquet/metadata.h"

namespace switchyard::parquet {

// Throws Error kInvalid that begins with `where` and names the codec if Decompress does not know
// it.
void CheckCodec(Codec codec, const std::string& where);

// Returns the `bytes` bytes that `data` decompresses to. Throws Error kInvalid that begins with
// `where`: a codec other than UNCOMPRESSED, SNAPPY, GZIP and ZSTD, malformed data, another size.
// Memory is allocated only if data of this length can decompress to `bytes` bytes.
std::vector<uint8_t> Decompress(Codec codec, std::span<const uint8_t> data, uint64_t bytes,
                                const std::string& where);

}  // namespace switchyard::parquet
