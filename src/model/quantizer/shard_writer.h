// Packs and writes the tensors of one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "core/parallel.h"
#include "model/quantizer/plan.h"
#include "model/quantizer/report.h"

namespace switchyard {

struct WrittenShard {
  std::string sha256;  // checksum of the file, hexadecimal
  PackingReport errors;
};

// Writes `shard` to dir / shard.file with the pool's threads. The file appears under its name when
// it is complete. Matrices are packed in batches of at most 32 MB of packed weights, or one matrix;
// memory is bounded by a batch, since sources are mapped and tensors are written at their places.
// `done(bytes)` is called after each batch with the source bytes that it read. Error kResource if
// the file cannot be written, kInvalid if a weight is NaN or infinite; then no file remains.
WrittenShard WriteShard(const Checkpoint& checkpoint, const ModelConfig& config,
                        const PlannedShard& shard, const std::filesystem::path& dir,
                        ThreadPool& pool, const std::function<void(uint64_t bytes)>& done);

// The SHA-256 sum of an existing file. Throws RegularFile's errors.
std::string Sha256OfFile(const std::filesystem::path& path);

}  // namespace switchyard
