#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/parallel.h"
#include "model/weights/load_jobs.h"
#include "model/weights/slabs.h"
#include "model/weights/source.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

constexpr size_t kJobBytes = size_t{4} << 20;

// Root mean squares of uniformly drawn codes: magnitudes in [2^e, 2^(e + 1)) have
// 2^e · sqrt(7 / 3), e2m1 codes sqrt(68.5 / 8).
const double kBinadeRms = std::sqrt(7.0 / 3.0);
const double kE2M1Rms = std::sqrt(68.5 / 8.0);
const double kInt8Rms = std::sqrt((256.0 * 256.0 + 2.0) / 12.0);  // codes -128 … 127
const double kInt6Rms = std::sqrt((64.0 * 64.0 + 2.0) / 12.0);    // codes -32 … 31
const double kInt5Rms = std::sqrt((32.0 * 32.0 + 2.0) / 12.0);    // codes -16 … 15
const double kInt4Rms = std::sqrt((16.0 * 16.0 + 2.0) / 12.0);    // codes -8 … 7
const double kNonLinear4Rms = std::sqrt(4548.0);                  // kNonLinear4

// Turns random bits into numbers with masks only, eight bytes at a time: keeps sign and mantissa,
// and fixes the exponent. Memory bandwidth limits this; a conversion from floats would be slower.
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
    case WeightFormat::kFp8Block:  // magnitudes in [1, 2), adjusted by the scale
    case WeightFormat::kFp8Channel:
      return {Repeat(0x87u, 8), Repeat(0x38u, 8)};
    default:  // every code is a valid number
      return {~uint64_t{0}, 0};
  }
}

// Fills bytes [begin, end) of stored rows row0 + i · row_step, packed contiguously at `out`. Not
// empty `picked`: of stored rows row0 + picked[i] · row_step.
struct Fill {
  uint8_t* out = nullptr;
  uint64_t seed = 0;
  Pattern pattern;
  int64_t row0 = 0, row_step = 1;
  size_t begin = 0, end = 0;
  std::span<const int32_t> picked = {};
};

// A fill of the rows of the request.
Fill FillOf(const MatrixRequest& r, uint64_t seed, Pattern pattern) {
  Fill fill{.seed = seed, .pattern = pattern, .row0 = r.row0, .row_step = r.row_step};
  if (r.picked.empty()) {
    fill.row0 += r.rows.begin * r.row_step;
  } else {
    fill.picked = r.picked.subspan(r.rows.begin, r.rows.size());
  }
  return fill;
}

void FillRow(const Fill& fill, int64_t i, uint8_t* out) {
  const int64_t stored =
      fill.row0 + (fill.picked.empty() ? i : fill.picked[static_cast<size_t>(i)]) * fill.row_step;
  const uint64_t row = MixBits(fill.seed + static_cast<uint64_t>(stored) * kSplitMixStep);
  const auto word_at = [&](size_t w) {
    return (MixBits(row + w * kSplitMixStep) & fill.pattern.keep) | fill.pattern.set;
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

// Layout of a format's codes and scales.
struct CodeLayout {
  int64_t bits = 16;           // bits of a code
  int64_t unit = 1;            // columns that share a scale and are never split
  int64_t row_unit = 1;        // rows that share a scale
  size_t scale_bytes = 0;      // 0: no scales
  bool scale_for_row = false;  // one scale for all columns
};

CodeLayout LayoutOf(WeightFormat format, int64_t group_size) {
  switch (format) {
    case WeightFormat::kF32:
      return {.bits = 32};
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return {};
    case WeightFormat::kFp8Block:
      return {.bits = 8, .unit = kFp8BlockSize, .row_unit = kFp8BlockSize, .scale_bytes = 4};
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return {.bits = 8, .scale_bytes = 4, .scale_for_row = true};
    case WeightFormat::kInt4Group:
      return {.bits = 4, .unit = group_size, .scale_bytes = 4};
    case WeightFormat::kMxfp4:
      return {.bits = 4, .unit = kMxfp4BlockSize, .scale_bytes = 1};
    case WeightFormat::kNvfp4:
      return {.bits = 4, .unit = kNvfp4BlockSize, .scale_bytes = 1};
    default:
      break;
  }
  CheckFailed(__FILE__, __LINE__, "unknown format");
}

class DummySource : public WeightSource {
 public:
  DummySource(const ModelConfig& config, uint64_t seed, int threads, size_t slab_bytes)
      : config_(config),
        seed_(seed),
        threads_(threads),
        slabs_(slab_bytes > 0 ? slab_bytes : Slabs::kSlabBytes) {}

  bool Has(const std::string& name) const override {
    return config_.quantization.mxfp4_blocks() && name.ends_with("_blocks");
  }

  WeightView Matrix(const MatrixRequest& r) override {
    const WeightFormat format = ImpliedFormat(config_, r);
    WeightView view{.format = format,
                    .activation = Activation(r.scheme, format),
                    .n = r.rows.size(),
                    .k = r.cols.size()};
    Range cols = r.cols;
    if (view.format == WeightFormat::kInt4Group) {
      // If a row has a single group, the group covers all columns, so that all parts have the same
      // scale.
      view.group_size = GroupSizeOf(r.scheme, {0, r.k});
    }
    if (HasPanels(format)) return Panels(r, view);
    const CodeLayout layout = LayoutOf(view.format, view.group_size);
    if (layout.bits == 4) {  // full groups; the view may begin or end within one
      cols = {r.cols.begin / layout.unit * layout.unit,
              CeilDiv(r.cols.end, layout.unit) * layout.unit};
    }
    view.col0 = r.cols.begin - cols.begin;
    view.stored_k = cols.size();
    const auto row_bytes = static_cast<size_t>(cols.size() * layout.bits / 8);
    const auto row_begin = static_cast<size_t>(cols.begin * layout.bits / 8);
    const size_t data_bytes = Slabs::Align(row_bytes * static_cast<size_t>(view.n));
    const size_t scales = NumScales(view, layout);
    const size_t zeros = r.scheme.zeros ? scales : 0;
    const Slabs::Piece piece = slabs_.Allocate(data_bytes + scales * layout.scale_bytes + zeros);
    view.data = piece.data;
    view.owner = piece.owner;
    Fill fill = FillOf(r, SeedOf(r.name, r.expert), PatternOf(view.format, r.k));
    fill.out = piece.data;
    fill.begin = row_begin;
    fill.end = row_begin + row_bytes;
    AddFill(fill, view.n);
    if (scales != 0) {
      view.scales = piece.data + data_bytes;
      SetScales(r.k, scales, piece.data + data_bytes, &view);
    }
    if (zeros != 0) {
      uint8_t* points = piece.data + data_bytes + scales * layout.scale_bytes;
      std::fill_n(points, zeros, static_cast<uint8_t>(kInt4Zero));
      view.zeros = points;
    }
    return view;
  }

  void Vector(const VectorRequest& r, std::span<float> out) override {
    const uint64_t seed = SeedOf(r.name, r.expert);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      const auto stored = static_cast<uint64_t>(r.offset + (r.range.begin + i) * r.step);
      const auto bits = static_cast<int32_t>(MixBits(seed + stored * kSplitMixStep) >> 32);
      if (r.below > 0) {
        out[i] = static_cast<float>(stored % static_cast<uint64_t>(r.below));
        continue;
      }
      out[i] = r.norm ? 1.0f : 0.05f * static_cast<float>(bits) * 0x1p-31f;
    }
  }

  void Finish(const Progress& progress) override {
    ThreadPool pool(threads_);
    jobs_.Run(pool, 0, jobs_.total(), progress);
  }

 private:
  // Static input scales need a checkpoint, so dummy weights have none.
  static ActivationFormat Activation(const LinearScheme& scheme, WeightFormat format) {
    if (scheme.activation == ActivationFormat::kBFloat16 && format != WeightFormat::kBF16) {
      return ActivationFormat::kNone;
    }
    return scheme.activation == ActivationFormat::kFp8Tensor ? ActivationFormat::kFp8Token
                                                             : scheme.activation;
  }

  uint64_t SeedOf(const std::string& name, int64_t expert) const {
    return MixBits(HashOf(name) + MixBits(seed_ + kSplitMixStep) +
                   static_cast<uint64_t>(expert) * kSplitMixStep);
  }

  static size_t NumScales(const WeightView& view, const CodeLayout& layout) {
    if (layout.scale_bytes == 0) return 0;
    const int64_t cols = layout.scale_for_row ? 1 : CeilDiv(view.stored_k, layout.unit);
    return static_cast<size_t>(CeilDiv(view.n, layout.row_unit) * cols);
  }

  WeightView Panels(const MatrixRequest& r, WeightView view) {
    view.group_size = GroupSizeOf(r.scheme, {0, r.k});
    view.stored_k = view.k;
    if (view.format == WeightFormat::kNvfp4Panels) view.global_scale = Nvfp4Scale(r.k);
    const PanelLayout layout = PanelLayoutOf(view.format, view.group_size);
    const Slabs::Piece piece = slabs_.Allocate(
        static_cast<size_t>(PanelMatrixBytes(view.format, view.group_size, view.n, view.k)));
    view.data = piece.data;
    view.owner = piece.owner;
    const int64_t part_bytes = layout.code_bytes / kPanelHeight;  // code bytes of a row in a panel
    const int64_t parts = CeilDiv(view.k, kPanelColumns);
    Fill fill = FillOf(r, SeedOf(r.name, r.expert), PatternOf(view.format, r.k));
    fill.begin = static_cast<size_t>(r.cols.begin * part_bytes / kPanelColumns);
    fill.end = fill.begin + static_cast<size_t>(parts * part_bytes);
    const PanelRow scales = PanelScales(view.format, r.k, view.group_size);
    constexpr int64_t kRows = 128;  // rows of a job; whole panels
    for (int64_t first = 0; first < view.n; first += kRows) {
      const int64_t end = std::min(view.n, first + kRows);
      jobs_.Add(static_cast<size_t>((end - first) * parts * part_bytes), [=, out = piece.data] {
        std::vector<uint8_t> codes(static_cast<size_t>(parts * part_bytes));
        PanelRow row = scales;
        for (int64_t i = first; i < end; ++i) {
          FillRow(fill, i, codes.data());
          for (int64_t part = 0; part < parts; ++part) {
            std::memcpy(row.codes, codes.data() + part * part_bytes,
                        static_cast<size_t>(part_bytes));
            PutPanelRow(view.format, view.group_size, view.k, i, part, row, out);
          }
        }
      });
    }
    return view;
  }

  // The scales of one row of a panel. They are the scales of SetScales. For ggml's types, they give
  // weights a similar standard deviation.
  static PanelRow PanelScales(WeightFormat format, int64_t k, int64_t group_size) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(k));
    PanelRow row{};
    uint8_t* out = row.scales;
    const auto halves = [&out](int64_t count, auto half) {
      for (int64_t i = 0; i < count; ++i, out += sizeof half.bits)
        std::memcpy(out, &half.bits, sizeof half.bits);
    };
    const auto bytes = [&out](int64_t count, uint8_t byte) { out = std::fill_n(out, count, byte); };
    constexpr int64_t kBlocks = kPanelColumns / kMxfp4BlockSize;
    constexpr uint8_t kFactor = 32;  // 6-bit scale of the K types
    const auto half_of = [&](double rms) { return ToF16(static_cast<float>(deviation / rms)); };
    switch (format) {
      case WeightFormat::kMxfp4Panels:
        bytes(kBlocks, Mxfp4Exponent(deviation));
        break;
      case WeightFormat::kNvfp4Panels:
        bytes(2 * kBlocks, ToF8E4M3(1.0f).bits);
        break;
      case WeightFormat::kIQ4XSPanels:
        bytes(kBlocks, kFactor);
        halves(1, half_of(kNonLinear4Rms * kFactor));
        break;
      case WeightFormat::kQ4_0Panels:
        halves(kBlocks, half_of(kInt4Rms));
        break;
      case WeightFormat::kQ8_0Panels:
        halves(kBlocks, half_of(kInt8Rms));
        break;
      case WeightFormat::kQ4KPanels:  // minima of 8 steps
        bytes(2 * kBlocks, kFactor);
        halves(1, half_of(kInt4Rms * kFactor));
        halves(1, half_of(kInt4Rms * kFactor / kInt4Zero));
        break;
      case WeightFormat::kQ5KPanels:
        bytes(2 * kBlocks, kFactor);
        halves(1, half_of(kInt5Rms * kFactor));
        halves(1, half_of(kInt5Rms * kFactor / (2 * kInt4Zero)));
        break;
      case WeightFormat::kQ6KPanels:
        bytes(2 * kBlocks, kFactor);
        halves(1, half_of(kInt6Rms * kFactor));
        break;
      default:  // int4
        halves(kPanelColumns / group_size, ToBF16(Int4Scale(deviation)));
        if (format == WeightFormat::kInt4ZeroPanels)
          bytes(kPanelColumns / group_size, static_cast<uint8_t>(kInt4Zero));
        break;
    }
    return row;
  }

  // The scale of int4 weights, rounded to bfloat16, because panels store scales in bfloat16.
  static float Int4Scale(double deviation) {
    return ToFloat(ToBF16(static_cast<float>(deviation / kInt4Rms)));
  }
  // The global scale of NVFP4; the scales of blocks are 1.
  static float Nvfp4Scale(int64_t k) {
    return static_cast<float>(1.0 / (std::sqrt(static_cast<double>(k)) * kE2M1Rms));
  }
  static uint8_t Mxfp4Exponent(double deviation) {
    return static_cast<uint8_t>(127 + std::lround(std::log2(deviation / kE2M1Rms)));
  }

  // One scale for the whole tensor, so that shards have the same scale wherever they start.
  static void SetScales(int64_t k, size_t count, uint8_t* scales, WeightView* view) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(k));
    const auto fill = [&](double rms) {
      std::fill_n(reinterpret_cast<float*>(scales), count, static_cast<float>(deviation / rms));
    };
    switch (view->format) {
      case WeightFormat::kMxfp4:
        std::fill_n(scales, count, Mxfp4Exponent(deviation));
        return;
      case WeightFormat::kNvfp4:
        std::fill_n(scales, count, ToF8E4M3(1.0f).bits);
        view->global_scale = Nvfp4Scale(k);
        return;
      case WeightFormat::kInt8Channel:
        return fill(kInt8Rms);
      case WeightFormat::kInt4Group:
        std::fill_n(reinterpret_cast<float*>(scales), count, Int4Scale(deviation));
        return;
      default:
        return fill(kBinadeRms);
    }
  }

  void AddFill(const Fill& fill, int64_t rows) {
    const size_t row_bytes = fill.end - fill.begin;
    if (row_bytes == 0 || rows == 0) return;
    const auto step = static_cast<int64_t>(std::max<size_t>(1, kJobBytes / row_bytes));
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t end = std::min(rows, first + step);
      jobs_.Add(static_cast<size_t>(end - first) * row_bytes, [fill, row_bytes, first, end] {
        for (int64_t i = first; i < end; ++i) {
          FillRow(fill, i, fill.out + static_cast<size_t>(i) * row_bytes);
        }
      });
    }
  }

  const ModelConfig& config_;
  const uint64_t seed_;
  const int threads_;
  Slabs slabs_;
  LoadJobs jobs_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeDummySource(const ModelConfig& config, uint64_t seed, int threads,
                                              size_t slab_bytes) {
  return WithOwnerOfHead(config, [&](const ModelConfig& of) {
    return std::make_unique<DummySource>(of, seed, threads, slab_bytes);
  });
}

}  // namespace switchyard
