#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

constexpr size_t kSlabBytes = size_t{64} << 20;
constexpr size_t kTaskBytes = size_t{4} << 20;
constexpr size_t kTasksPerReport = 64;

// Magnitudes are uniform in [2^e, 2^(e + 1)), whose root mean square is 2^e · sqrt(7 / 3); e2m1
// codes drawn uniformly have sqrt(68.5 / 8).
const double kBinadeRms = std::sqrt(7.0 / 3.0);
const double kE2M1Rms = std::sqrt(68.5 / 8.0);

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

// FNV-1a.
uint64_t HashName(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

// Random bits become numbers by masking alone, eight bytes at a time: sign and mantissa are kept,
// the exponent is fixed. That runs at the speed of memory, which converting floats would not.
struct Pattern {
  uint64_t keep = 0, set = 0;
};

uint64_t Repeat(uint64_t bits, int width) {
  for (int w = width; w < 64; w *= 2) bits |= bits << w;
  return bits;
}

Pattern PatternOf(WeightFormat format, int64_t k) {
  const int e = static_cast<int>(
      std::lround(std::log2(1.0 / (std::sqrt(static_cast<double>(k)) * kBinadeRms))));
  const auto exponent = [e](int bias, int shift, int last) {
    return static_cast<uint64_t>(std::clamp(e + bias, 1, last)) << shift;
  };
  switch (format) {
    case WeightFormat::kF32:
      return {Repeat(0x807fffffu, 32), Repeat(exponent(127, 23, 254), 32)};
    case WeightFormat::kBF16:
      return {Repeat(0x807fu, 16), Repeat(exponent(127, 7, 254), 16)};
    case WeightFormat::kF16:
      return {Repeat(0x83ffu, 16), Repeat(exponent(15, 10, 30), 16)};
    case WeightFormat::kFp8Block:  // magnitudes in [1, 2); the scale does the rest
      return {Repeat(0x87u, 8), Repeat(0x38u, 8)};
    case WeightFormat::kMxfp4:  // every code is a number
      return {~uint64_t{0}, 0};
  }
  CheckFailed(__FILE__, __LINE__, "unknown format");
}

// Bytes [begin, end) of stored rows row0 + i · row_step, packed one after the other at `out`.
struct Fill {
  uint8_t* out = nullptr;
  uint64_t seed = 0;
  Pattern pattern;
  int64_t row0 = 0, row_step = 1;
  size_t begin = 0, end = 0;
};

void FillRow(const Fill& fill, int64_t i, uint8_t* out) {
  const uint64_t row =
      Mix(fill.seed + static_cast<uint64_t>(fill.row0 + i * fill.row_step) * kStep);
  const auto word_at = [&](size_t w) {
    return (Mix(row + w * kStep) & fill.pattern.keep) | fill.pattern.set;
  };
  size_t at = fill.begin;
  const auto partial = [&](size_t end) {
    const uint64_t word = word_at(at / 8);
    std::memcpy(out, reinterpret_cast<const uint8_t*>(&word) + at % 8, end - at);
    out += end - at;
    at = end;
  };
  if (at % 8 != 0) partial(std::min(fill.end, at / 8 * 8 + 8));
  for (; at + 8 <= fill.end; at += 8, out += 8) {
    const uint64_t word = word_at(at / 8);
    std::memcpy(out, &word, 8);
  }
  if (at < fill.end) partial(fill.end);
}

class DummySource : public WeightSource {
 public:
  DummySource(const ModelConfig& config, uint64_t seed, int threads)
      : config_(config), seed_(seed), threads_(threads) {}

  bool Has(const std::string& name) const override {
    return config_.quantization == ModelConfig::Quantization::kMxfp4 && name.ends_with("_blocks");
  }

  WeightView Matrix(const MatrixRequest& r) override {
    WeightView view{
        .format = ImpliedFormat(config_, r.form), .n = r.rows.size(), .k = r.cols.size()};
    Range cols = r.cols;
    if (view.format == WeightFormat::kMxfp4) {  // whole blocks, which the view may cut
      cols = {r.cols.begin / kMxfp4BlockSize * kMxfp4BlockSize,
              CeilDiv(r.cols.end, kMxfp4BlockSize) * kMxfp4BlockSize};
    }
    view.col0 = r.cols.begin - cols.begin;
    view.stored_k = cols.size();
    const int64_t bits = BitsPerElement(view.format);
    const auto row_bytes = static_cast<size_t>(cols.size() * bits / 8);
    const auto row_begin = static_cast<size_t>(cols.begin * bits / 8);
    const size_t data_bytes = AlignUp(row_bytes * static_cast<size_t>(view.n));
    const Memory memory = Allocate(data_bytes + ScaleBytes(view));
    view.data = memory.data;
    view.owner = memory.owner;
    AddFill({.out = memory.data,
             .seed = SeedOf(r.name, r.expert),
             .pattern = PatternOf(view.format, r.k),
             .row0 = r.row0 + r.rows.begin * r.row_step,
             .row_step = r.row_step,
             .begin = row_begin,
             .end = row_begin + row_bytes},
            view.n);
    if (ScaleBytes(view) != 0) {
      view.scales = memory.data + data_bytes;
      SetScales(view, r.k, memory.data + data_bytes);
    }
    return view;
  }

  void Vector(const VectorRequest& r, std::span<float> out) override {
    const uint64_t seed = SeedOf(r.name, r.expert);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      const auto stored = static_cast<uint64_t>(r.offset + (r.range.begin + i) * r.step);
      const auto bits = static_cast<int32_t>(Mix(seed + stored * kStep) >> 32);
      out[i] = r.norm ? 1.0f : 0.05f * static_cast<float>(bits) * 0x1p-31f;
    }
  }

  void Finish(const Progress& progress) override {
    ThreadPool pool(threads_);
    size_t total = 0, done = 0;
    for (const Task& t : tasks_) total += TaskBytes(t);
    for (size_t first = 0; first < tasks_.size(); first += kTasksPerReport) {
      const size_t count = std::min(kTasksPerReport, tasks_.size() - first);
      pool.Run(static_cast<int64_t>(count), [&](int64_t i) { RunTask(tasks_[first + i]); });
      for (size_t i = first; i < first + count; ++i) done += TaskBytes(tasks_[i]);
      if (progress) progress(done, total);
    }
    tasks_.clear();
    fills_.clear();
  }

 private:
  struct Memory {
    uint8_t* data = nullptr;
    std::shared_ptr<const void> owner;
  };
  struct Task {
    const Fill* fill = nullptr;
    int64_t begin = 0, end = 0;  // rows
  };

  static size_t AlignUp(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static int64_t BitsPerElement(WeightFormat format) {
    switch (format) {
      case WeightFormat::kF32:
        return 32;
      case WeightFormat::kFp8Block:
        return 8;
      case WeightFormat::kMxfp4:
        return 4;
      default:
        return 16;
    }
  }
  static size_t TaskBytes(const Task& t) {
    return static_cast<size_t>(t.end - t.begin) * (t.fill->end - t.fill->begin);
  }
  static void RunTask(const Task& t) {
    const size_t row_bytes = t.fill->end - t.fill->begin;
    for (int64_t i = t.begin; i < t.end; ++i) {
      FillRow(*t.fill, i, t.fill->out + static_cast<size_t>(i) * row_bytes);
    }
  }

  uint64_t SeedOf(const std::string& name, int64_t expert) const {
    return Mix(HashName(name) + Mix(seed_ + kStep) + static_cast<uint64_t>(expert) * kStep);
  }

  static size_t ScaleBytes(const WeightView& view) {
    if (view.format == WeightFormat::kFp8Block) {
      return sizeof(float) * static_cast<size_t>(CeilDiv(view.n, kFp8BlockSize) *
                                                 CeilDiv(view.stored_k, kFp8BlockSize));
    }
    return view.format == WeightFormat::kMxfp4
               ? static_cast<size_t>(view.n * CeilDiv(view.stored_k, kMxfp4BlockSize))
               : 0;
  }

  // One scale for the whole tensor: parts then agree whatever their origin is.
  static void SetScales(const WeightView& view, int64_t k, uint8_t* scales) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(k));
    if (view.format == WeightFormat::kFp8Block) {
      std::fill_n(reinterpret_cast<float*>(scales), ScaleBytes(view) / sizeof(float),
                  static_cast<float>(deviation / kBinadeRms));
    } else {
      std::fill_n(scales, ScaleBytes(view),
                  static_cast<uint8_t>(127 + std::lround(std::log2(deviation / kE2M1Rms))));
    }
  }

  void AddFill(const Fill& fill, int64_t rows) {
    const size_t row_bytes = fill.end - fill.begin;
    if (row_bytes == 0 || rows == 0) return;
    fills_.push_back(fill);
    const auto step = static_cast<int64_t>(std::max<size_t>(1, kTaskBytes / row_bytes));
    for (int64_t row = 0; row < rows; row += step) {
      tasks_.push_back({&fills_.back(), row, std::min(rows, row + step)});
    }
  }

  // Thousands of experts share slabs: one mapping each would run into the kernel's limit on
  // mappings.
  Memory Allocate(size_t bytes) {
    bytes = AlignUp(bytes);
    if (bytes > slab_left_) {
      const size_t size = std::max(bytes, kSlabBytes);
      auto slab = std::make_shared<Tensor>(Tensor::Empty(DType::kU8, {static_cast<int64_t>(size)}));
      slab_next_ = static_cast<uint8_t*>(slab->mutable_raw());
      slab_left_ = size;
      slab_ = std::move(slab);
    }
    Memory memory{slab_next_, slab_};
    slab_next_ += bytes;
    slab_left_ -= bytes;
    return memory;
  }

  const ModelConfig& config_;
  const uint64_t seed_;
  const int threads_;
  std::deque<Fill> fills_;  // tasks point into it
  std::vector<Task> tasks_;
  std::shared_ptr<const Tensor> slab_;
  uint8_t* slab_next_ = nullptr;
  size_t slab_left_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> MakeDummySource(const ModelConfig& config, uint64_t seed,
                                              int threads) {
  return std::make_unique<DummySource>(config, seed, threads);
}

}  // namespace switchyard
