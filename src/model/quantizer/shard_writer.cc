#include "model/quantizer/shard_writer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "core/regular_file.h"
#include "core/safetensors_writer.h"
#include "core/verify_files.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

constexpr uint64_t kBatchBytes = 32 << 20;  // packed bytes of one batch
constexpr size_t kSlabBytes = 16 << 20;
constexpr int64_t kRowsOfJob = 64;
constexpr size_t kHashedBytes = 4 << 20;  // bytes of one read

template <typename T>
std::vector<uint8_t> BytesOf(const std::vector<T>& values) {
  std::vector<uint8_t> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

std::span<const uint8_t> Stored(const void* data, const PlannedTensor& t) {
  return {static_cast<const uint8_t*>(data), static_cast<size_t>(t.bytes())};
}

// Scales are representable in bfloat16 (FindInt4Scale).
std::vector<uint8_t> BFloat16Scales(const void* scales, const PlannedTensor& t) {
  std::vector<BF16> out(static_cast<size_t>(t.bytes()) / sizeof(BF16));
  for (size_t i = 0; i < out.size(); ++i) {
    float scale;
    std::memcpy(&scale, static_cast<const uint8_t*>(scales) + i * sizeof scale, sizeof scale);
    out[i] = ToBF16(scale);
    CHECK_EQ(ToFloat(out[i]), scale);
  }
  return BytesOf(out);
}

// Zero points [n, groups] as words of eight rows: row i in nibble i % 8.
std::vector<uint8_t> ZeroWords(const WeightView& w, int64_t groups) {
  const auto* zeros = static_cast<const uint8_t*>(w.zeros);
  std::vector<uint32_t> words(static_cast<size_t>(w.n / 8 * groups));
  for (int64_t i = 0; i < w.n; ++i) {
    for (int64_t g = 0; g < groups; ++g) {
      words[i / 8 * groups + g] |= uint32_t{zeros[i * groups + g]} << (4 * (i % 8));
    }
  }
  return BytesOf(words);
}

// The number that the file stores for a global scale. The format divides block scales by this
// number, so it is the reciprocal. Readers that invert it get exactly `scale`.
float StoredGlobalScale(float scale) {
  const float inverse = 1.0f / scale;
  for (const float candidate :
       {inverse, std::nextafterf(inverse, 0.0f), std::nextafterf(inverse, HUGE_VALF)}) {
    if (1.0f / candidate == scale) return candidate;
  }
  CheckFailed(__FILE__, __LINE__, "the scale is no reciprocal of a float32");
}

// Drops the tensor's pages from this process. They stay in the page cache, so that resident memory
// shows what the process needs.
void Unmap(const StoredTensor& t) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto before = reinterpret_cast<uintptr_t>(t.data) % page;  // bytes in the first page
  ::madvise(const_cast<uint8_t*>(t.data) - before, before + t.num_bytes, MADV_DONTNEED);
}

class ShardWriter {
 public:
  ShardWriter(const Checkpoint& checkpoint, const ModelConfig& config, const PlannedShard& shard,
              const std::filesystem::path& path, ThreadPool& pool)
      : checkpoint_(checkpoint), config_(config), shard_(shard), pool_(pool), out_(path) {
    TensorEntries entries;
    for (const PlannedPart& part : shard.parts) {
      for (const PlannedTensor& t : part.out) {
        entries[t.name] = {t.dtype, t.shape, t.offset, t.offset + t.bytes()};
      }
    }
    const std::string head = SafetensorsHead(entries, {{"format", "pt"}});
    out_.WriteAt(0, head.data(), head.size());
    head_bytes_ = head.size();
  }

  // Parts [begin, end) are one batch.
  void WriteBatch(size_t begin, size_t end) {
    const CheckpointSourceOptions options = {
        .threads = pool_.num_threads(), .log = false, .slab_bytes = kSlabBytes};
    const auto source = MakeCheckpointSource(checkpoint_, config_, options);
    const auto plain = MakeCheckpointSource(checkpoint_, config_, options);
    std::vector<WeightView> views(end - begin), stored(end - begin);
    for (size_t i = begin; i < end; ++i) {
      if (!shard_.parts[i].packed) continue;
      MatrixRequest request = shard_.parts[i].request;
      views[i - begin] = source->Matrix(request);
      request.scheme = {};
      stored[i - begin] = plain->Matrix(request);
    }
    source->Finish({});
    plain->Finish({});
    for (size_t i = begin; i < end; ++i) {
      const PlannedPart& part = shard_.parts[i];
      if (!part.packed) {
        Put(part.out.front(), {part.source->data, part.source->num_bytes});
        Unmap(*part.source);
        continue;
      }
      errors_.Add(part.module, ErrorOf(stored[i - begin], views[i - begin]));
      WritePacked(part, views[i - begin]);
      Unmap(*part.source);
    }
  }

  WrittenShard Finish() {
    Sha256 sum;
    const uint64_t size = head_bytes_ + shard_.bytes;
    std::vector<uint8_t> block(kHashedBytes);
    for (uint64_t at = 0; at < size; at += block.size()) {
      const size_t count = std::min<uint64_t>(block.size(), size - at);
      out_.ReadAt(at, block.data(), count);
      sum.Add(block.data(), count);
    }
    out_.Finish();
    return {sum.Finish(), std::move(errors_)};
  }

 private:
  void Put(const PlannedTensor& t, std::span<const uint8_t> bytes) {
    CHECK_EQ(bytes.size(), t.bytes());
    out_.WriteAt(head_bytes_ + t.offset, bytes.data(), bytes.size());
  }

  void WritePacked(const PlannedPart& part, const WeightView& w) {
    Put(part.out[0], Stored(w.data, part.out[0]));
    switch (w.format) {
      case WeightFormat::kInt4Group: {
        Put(part.out[1], BFloat16Scales(w.scales, part.out[1]));
        Put(part.out[2], BytesOf(std::vector<int64_t>{w.n, w.k}));
        if (w.zeros) Put(part.out[3], ZeroWords(w, CeilDiv(w.k, w.group_size)));
        return;
      }
      case WeightFormat::kNvfp4:
        Put(part.out[1], Stored(w.scales, part.out[1]));
        Put(part.out[2], BytesOf(std::vector<float>{StoredGlobalScale(w.global_scale)}));
        return;
      default:
        Put(part.out[1], Stored(w.scales, part.out[1]));
    }
  }

  // Sums in the order of rows, so that the report does not depend on the number of threads.
  PackingError ErrorOf(const WeightView& plain, const WeightView& packed) {
    std::vector<PackingError> rows(static_cast<size_t>(plain.n));
    pool_.RunRanges(plain.n, kRowsOfJob, [&](int64_t begin, int64_t end) {
      std::vector<float> want(static_cast<size_t>(plain.k)), got(want.size());
      for (int64_t i = begin; i < end; ++i) {
        DequantizeRow(plain, i, 0, plain.k, want.data());
        DequantizeRow(packed, i, 0, plain.k, got.data());
        PackingError& row = rows[i];
        for (size_t j = 0; j < want.size(); ++j) {
          const double x = want[j], difference = x - got[j];
          row.squares += x * x;
          row.error += difference * difference;
        }
      }
    });
    PackingError sum{.weights = plain.n * plain.k};
    for (const PackingError& row : rows) sum += row;
    return sum;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const PlannedShard& shard_;
  ThreadPool& pool_;
  OutputFile out_;
  uint64_t head_bytes_ = 0;
  PackingReport errors_;
};

}  // namespace

WrittenShard WriteShard(const Checkpoint& checkpoint, const ModelConfig& config,
                        const PlannedShard& shard, const std::filesystem::path& dir,
                        ThreadPool& pool, const std::function<void(uint64_t bytes)>& done) {
  ShardWriter writer(checkpoint, config, shard, dir / shard.file, pool);
  const std::vector<PlannedPart>& parts = shard.parts;
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin;
    uint64_t bytes = 0, source_bytes = 0;
    do {
      bytes += parts[end].bytes();
      source_bytes += parts[end].source_bytes();
      ++end;
    } while (end < parts.size() && bytes + parts[end].bytes() <= kBatchBytes);
    writer.WriteBatch(begin, end);
    done(source_bytes);
    begin = end;
  }
  return writer.Finish();
}

std::string Sha256OfFile(const std::filesystem::path& path) {
  const RegularFile file(path);
  Sha256 sum;
  std::vector<uint8_t> block(kHashedBytes);
  for (;;) {
    const ssize_t got = ::read(file.fd(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw NotFound("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (got == 0) return sum.Finish();
    sum.Add(block.data(), static_cast<size_t>(got));
  }
}

}  // namespace switchyard
