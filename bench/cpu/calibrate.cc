#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "bench/calibration.h"
#include "bench/cpu/cores.h"
#include "bench/cpu/machine.h"
#include "bench/cpu/memory_loops.h"
#include "bench/timing.h"
#include "core/tensor.h"
#include "kernels/cache_rows.h"
#include "kernels/compressed.h"
#include "kernels/ops.h"
#include "moe/router/router.h"

namespace switchyard::bench {
namespace {

constexpr int64_t kHidden = 2048, kWidth = 1024, kHeads = 16, kHeadDim = 128;
constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr int kExperts = 16;
constexpr char kByte = 0x3c;  // a small positive number in every format

// Products of one format of weights and rows.
struct Format {
  WeightFormat weights;
  ActivationFormat rows = ActivationFormat::kNone;

  std::string Name() const {
    std::string name(switchyard::Name(weights));
    // The name omits kInt8Group: it is the default row format of 4-bit weights, and plans do not
    // name it.
    if (rows != ActivationFormat::kNone && rows != ActivationFormat::kInt8Group)
      name += fmt::format(", {}", switchyard::Name(rows));
    return name;
  }
};

Tensor Filled(int64_t bytes) {
  Tensor t = Tensor::Empty(DType::kU8, {bytes});
  std::memset(t.mutable_raw(), kByte, bytes);
  return t;
}

// Returns weights for each product. Each call uses another position of a large buffer, so that the
// weights are not in cache.
class Weights {
 public:
  Weights() : memory_(Filled(kPoolBytes)), scales_(Filled(kScaleBytes)) {}

  WeightView Next(const Format& format, int64_t n, int64_t k) {
    const auto bytes =
        static_cast<int64_t>(static_cast<double>(n * k) * BytesPerWeight(format.weights));
    if (next_ + bytes > kPoolBytes) next_ = 0;
    // MXFP4's scales are exponents. All are 2^-7, so that no product is subnormal.
    const bool exponents = format.weights == WeightFormat::kMxfp4;
    if (exponents != exponents_)
      std::memset(scales_.mutable_raw(), exponents ? 120 : kByte, kScaleBytes);
    exponents_ = exponents;
    WeightView w = {.format = format.weights,
                    .data = static_cast<const char*>(memory_.raw()) + next_,
                    .scales = scales_.raw(),
                    .group_size = format.weights == WeightFormat::kInt4Group ? 128 : 0,
                    .activation = format.rows,
                    .stored_k = k,
                    .n = n,
                    .k = k};
    next_ += (bytes + 4095) / 4096 * 4096;
    return w;
  }

 private:
  static constexpr int64_t kScaleBytes = int64_t{1} << 26;
  Tensor memory_, scales_;
  bool exponents_ = false;
  int64_t next_ = 0;
};

class Calibration {
 public:
  Calibration(int threads, Report& report) : pool_(threads), report_(report) {}

  // Runs several rounds and takes the median of each figure, because the memory bandwidth of a
  // shared host changes within seconds.
  plan::CostTable Run() {
    std::vector<plan::CostTable> rounds;
    for (int i = 0; i < kRounds; ++i) rounds.push_back(Round());
    return MedianOf(rounds);
  }

 private:
  plan::CostTable Round() {
    plan::CostTable t = plan::CpuDefaults(pool_.num_threads());
    t.name = "cpu";
    t.source = fmt::format("switchyard bench calibrate: {}, {} threads, {}", CpuName(),
                           pool_.num_threads(), kernels::Name(kernels::ActiveIsa()));
    t.measured = true;
    report_.Note(t.source);
    SmallOps(&t);
    t.weights.clear();
    t.products.clear();
    t.experts.clear();
    for (const Format& format : Formats()) {
      Products(format, &t);
      Experts(format, &t);
    }
    // The measured rates of products include the time to read weights, so the table's rate of
    // weight reads is practically infinite.
    t.weights["bfloat16"] = 1e15;
    t.product_seconds = t.grouped_seconds = 0;
    Attention(&t);
    Latent(&t);
    Entries(&t);
    Copies(&t);
    return t;
  }

  static plan::CostTable MedianOf(const std::vector<plan::CostTable>& rounds) {
    const auto median = [&](const auto& figure_of) {
      std::vector<double> figures;
      for (const plan::CostTable& round : rounds) figures.push_back(figure_of(round));
      return Median(std::move(figures));
    };
    const auto curve = [&](const auto& curve_of) {
      plan::Curve medians = curve_of(rounds.front());
      for (size_t i = 0; i < medians.points.size(); ++i)
        medians.points[i].second =
            median([&](const plan::CostTable& round) { return curve_of(round).points[i].second; });
      return medians;
    };
    plan::CostTable t = rounds.front();
    using Table = const plan::CostTable&;
    for (auto& entry : t.products)
      entry.second = plan::WithGrowingTimes(
          curve([&](Table round) -> const plan::Curve& { return round.products.at(entry.first); }));
    for (auto& entry : t.experts)
      entry.second = plan::WithGrowingTimes(
          curve([&](Table round) -> const plan::Curve& { return round.experts.at(entry.first); }));
    for (plan::Curve plan::CostTable::*const rates :
         {&plan::CostTable::decode_bytes, &plan::CostTable::latent_bytes,
          &plan::CostTable::prompt_flops, &plan::CostTable::latent_prompt_flops,
          &plan::CostTable::float32_decode_bytes, &plan::CostTable::float32_prompt_flops,
          &plan::CostTable::tile_seconds})
      t.*rates = curve([&](Table round) -> const plan::Curve& { return round.*rates; });
    for (double plan::CostTable::*const figure :
         {&plan::CostTable::bandwidth, &plan::CostTable::op_seconds,
          &plan::CostTable::select_seconds, &plan::CostTable::attention_seconds,
          &plan::CostTable::entry_flops})
      t.*figure = median([&](Table round) { return round.*figure; });
    t.host.rate = median([](Table round) { return round.host.rate; });
    return t;
  }

  // Median seconds of one call. Short, so that a round takes less than half a minute.
  template <typename F>
  static double MedianSeconds(const F& f) {
    return bench::MedianSeconds(
        f, [] {}, 0.2);
  }

  static std::vector<Format> Formats() {
    std::vector<Format> formats = {{WeightFormat::kBF16}};
    if (kernels::HasBFloat16Products(kernels::ActiveIsa()))
      formats.push_back({WeightFormat::kBF16, ActivationFormat::kBFloat16});
    formats.push_back({WeightFormat::kInt8Channel, ActivationFormat::kInt8Token});
    formats.push_back({WeightFormat::kFp8Block});
    formats.push_back({WeightFormat::kMxfp4, ActivationFormat::kInt8Group});
    return formats;
  }

  double Add(const std::string& name, const std::string& shape, double seconds, double flops,
             double bytes) {
    report_.Add({.name = name, .shape = shape, .seconds = seconds, .flops = flops, .bytes = bytes});
    return seconds;
  }

  void SmallOps(plan::CostTable* t) {
    const auto norm = [&](int64_t rows) {
      const Tensor x = Filled(rows * kHidden * 4), weight = Filled(kHidden * 4);
      Tensor y = Filled(rows * kHidden * 4);
      const double seconds = MedianSeconds([&] {
        kernels::RmsNorm({.x = static_cast<const float*>(x.raw()),
                          .ldx = kHidden,
                          .weight = static_cast<const float*>(weight.raw()),
                          .y = static_cast<float*>(y.mutable_raw()),
                          .ldy = kHidden,
                          .m = rows,
                          .n = kHidden},
                         pool_);
      });
      return Add("norm", fmt::format("{} x {}", rows, kHidden), seconds, 0,
                 static_cast<double>(rows * kHidden * 8));
    };
    t->op_seconds = norm(1);
    constexpr int64_t kRows = 8192;
    t->bandwidth = static_cast<double>(kRows * kHidden * 8) / norm(kRows);
    constexpr int64_t kTokens = 512, kRouted = 64;
    const RouterConfig router = {.num_experts = kRouted, .top_k = 8};
    std::vector<float> logits(kTokens * kRouted);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>((i * 7919) % 1009) / 1009;
    TopK topk;
    const double select = MedianSeconds(
        [&] { SelectExperts(router, logits.data(), kTokens, nullptr, &topk, pool_); });
    t->select_seconds =
        Add("select", fmt::format("{} tokens, top-8 of {}", kTokens, kRouted), select, 0, 0) /
        static_cast<double>(kTokens * kRouted);
  }

  void Products(const Format& format, plan::CostTable* t) {
    plan::Curve& curve = t->products[format.Name()];
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
      const Tensor x = Filled(m * kHidden * 4);
      Tensor y = Filled(m * kHidden * 4);
      const double flops = 2.0 * static_cast<double>(m * kHidden * kHidden);
      const std::string shape = fmt::format("{} {} x {} x {}", format.Name(), m, kHidden, kHidden);
      report_.Start("product", shape);
      const double seconds = MedianSeconds([&] {
        kernels::Linear({.x = static_cast<const float*>(x.raw()),
                         .ldx = kHidden,
                         .w = weights_.Next(format, kHidden, kHidden),
                         .y = static_cast<float*>(y.mutable_raw()),
                         .ldy = kHidden,
                         .m = m},
                        pool_);
      });
      Add("product", shape, seconds, flops,
          static_cast<double>(kHidden * kHidden) * BytesPerWeight(format.weights));
      curve.points.emplace_back(static_cast<double>(m), flops / seconds);
    }
  }

  // Every expert has the same number of rows.
  void Experts(const Format& format, plan::CostTable* t) {
    plan::Curve& curve = t->experts[format.Name()];
    for (const int64_t each : {1, 2, 4, 8, 16, 64, 256}) {
      const int64_t rows = each * kExperts;
      const Tensor x = Filled(rows * kHidden * 4);
      Tensor middle = Filled(rows * kWidth * 4), out = Filled(rows * kHidden * 4);
      std::vector<kernels::ExpertWeights> experts(kExperts);
      std::vector<int32_t> offsets(kExperts + 1);
      for (int e = 0; e <= kExperts; ++e) offsets[e] = static_cast<int32_t>(e * each);
      const double weights = 3.0 * kHidden * kWidth;
      const std::string shape =
          fmt::format("{} {} rows each of {} experts", format.Name(), each, kExperts);
      report_.Start("experts", shape);
      const double seconds = MedianSeconds([&] {
        for (kernels::ExpertWeights& expert : experts)
          expert = {.gate = weights_.Next(format, kWidth, kHidden),
                    .up = weights_.Next(format, kWidth, kHidden),
                    .down = weights_.Next(format, kHidden, kWidth)};
        kernels::GroupedMlp({.x = static_cast<const float*>(x.raw()),
                             .ldx = kHidden,
                             .experts = experts,
                             .offsets = offsets,
                             .scratch = static_cast<float*>(middle.mutable_raw()),
                             .out = static_cast<float*>(out.mutable_raw()),
                             .ldo = kHidden},
                            pool_);
      });
      const double flops = 2.0 * static_cast<double>(rows) * weights;
      Add("experts", shape, seconds, flops, kExperts * weights * BytesPerWeight(format.weights));
      curve.points.emplace_back(static_cast<double>(each), flops / seconds);
    }
  }

  // A batch of equal sequences, with keys in consecutive pages.
  struct Batch {
    static constexpr int32_t kPage = 16;
    Batch(int32_t sequences, int32_t rows, int32_t keys) : pages(sequences * (keys / kPage + 1)) {
      for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
      for (int32_t s = 0; s < sequences; ++s)
        spans.push_back({.row_begin = s * rows,
                         .rows = rows,
                         .kv_len = keys,
                         .pages = pages.data() + s * (keys / kPage + 1)});
    }
    int64_t slots() const { return std::ssize(pages) * kPage; }
    std::vector<int32_t> pages;
    std::vector<kernels::SequenceSpan> spans;
  };

  // Whether rows rounded to bfloat16 have products of their own, with a cache of bfloat16.
  bool pairs() const { return kernels::HasBFloat16Products(kernels::ActiveIsa()); }
  DType cache() const { return pairs() ? DType::kBF16 : DType::kF32; }

  // Seconds of attention over `sequences` sequences of `keys` keys. The last `rows` positions of
  // each sequence are queries. `group`: query heads per KV head. Rows are rounded with a cache of
  // bfloat16 only.
  double Attend(DType cache, int64_t group, int32_t sequences, int32_t rows, int32_t keys) {
    const int64_t kv_heads = kHeads / group;
    const Batch batch(sequences, rows, keys);
    const int64_t row_bytes = kernels::CacheRowBytes(cache, kHeadDim);
    const Tensor k = Filled(batch.slots() * kv_heads * row_bytes);
    const Tensor v = Filled(batch.slots() * kv_heads * row_bytes);
    const int64_t width = kHeads * kHeadDim;
    const Tensor q = Filled(sequences * rows * width * 4);
    Tensor out = Filled(sequences * rows * width * 4);
    return MedianSeconds([&] {
      kernels::Attention({.q = static_cast<const float*>(q.raw()),
                          .ldq = width,
                          .k_cache = k.raw(),
                          .v_cache = v.raw(),
                          .kv_dtype = cache,
                          .heads = kHeads,
                          .kv_heads = kv_heads,
                          .head_dim = kHeadDim,
                          .page_size = Batch::kPage,
                          .scale = 0.1f,
                          .bfloat16_rows = cache == DType::kBF16,
                          .sequences = batch.spans,
                          .out = static_cast<float*>(out.mutable_raw()),
                          .ldo = width},
                         pool_);
    });
  }

  void Attention(plan::CostTable* t) {
    t->decode_flops = t->latent_flops = 0;  // decode_bytes includes the arithmetic
    t->attention_seconds = Add("attention", "1 row on 16 keys", Attend(cache(), 1, 1, 1, 16), 0, 0);
    AttentionOf(cache(), &t->decode_bytes, &t->prompt_flops);
    t->float32_decode_bytes = t->float32_prompt_flops = {};
    if (cache() != DType::kF32)
      AttentionOf(DType::kF32, &t->float32_decode_bytes, &t->float32_prompt_flops);
    // Short sequences take more than the time of their bytes: each has its own start.
    constexpr int32_t kShort = 128, kSequences = 64;
    const double bytes = 2.0 * kSequences * kShort * kHeads *
                         static_cast<double>(kernels::CacheRowBytes(cache(), kHeadDim));
    const double seconds = Add(
        "attention", fmt::format("1 head of a KV head, {} x 1 rows on {} keys", kSequences, kShort),
        Attend(cache(), 1, kSequences, 1, kShort), 0, bytes);
    const double more = seconds - bytes / t->decode_bytes.points.front().second;
    t->tile_seconds.points = {{kShort, std::max(more / (kSequences * kHeads), 1e-10)},
                              {kKeys, 1e-10}};
  }

  static constexpr int32_t kKeys = 1024;  // of a decoding sequence

  void AttentionOf(DType cache, plan::Curve* decode, plan::Curve* prompt) {
    decode->points.clear();
    prompt->points.clear();
    for (const int64_t group : {1, 4, 8}) {
      const auto sequences = static_cast<int32_t>(8 * group);
      const int64_t kv_heads = kHeads / group;
      const double bytes = 2.0 * sequences * kKeys * static_cast<double>(kv_heads) *
                           static_cast<double>(kernels::CacheRowBytes(cache, kHeadDim));
      const double seconds = Add("attention",
                                 fmt::format("{}: {} heads of a KV head, {} x 1 rows on {} keys",
                                             Name(cache), group, sequences, kKeys),
                                 Attend(cache, group, sequences, 1, kKeys), 0, bytes);
      decode->points.emplace_back(static_cast<double>(group), bytes / seconds);
    }
    for (const auto& [rows, keys] : {std::pair{512, 512}, {512, 2048}, {512, 16384}}) {
      const double mean = keys - (rows - 1) / 2.0;
      const double flops = 4.0 * rows * mean * kHeads * kHeadDim;
      const double seconds =
          Add("attention", fmt::format("{}: {} rows on {} keys", Name(cache), rows, keys),
              Attend(cache, 1, 1, rows, keys), flops, 0);
      prompt->points.emplace_back(mean, flops / seconds);
    }
  }

  double AttendLatent(int32_t sequences, int32_t rows, int32_t keys) {
    constexpr int64_t kLora = 512, kRope = 64;
    const Batch batch(sequences, rows, keys);
    const Tensor c = Filled(batch.slots() * kernels::CacheRowBytes(cache(), kLora + kRope));
    const Tensor q = Filled(sequences * rows * kHeads * (kLora + kRope) * 4);
    Tensor out = Filled(sequences * rows * kHeads * kLora * 4);
    return MedianSeconds([&] {
      kernels::LatentAttention({.q = static_cast<const float*>(q.raw()),
                                .ldq = kHeads * (kLora + kRope),
                                .cache = c.raw(),
                                .kv_dtype = cache(),
                                .heads = kHeads,
                                .lora = kLora,
                                .rope = kRope,
                                .page_size = Batch::kPage,
                                .scale = 0.1f,
                                .bfloat16_rows = pairs(),
                                .sequences = batch.spans,
                                .out = static_cast<float*>(out.mutable_raw()),
                                .ldo = kHeads * kLora},
                               pool_);
    });
  }

  void Latent(plan::CostTable* t) {
    t->latent_bytes.points.clear();
    t->latent_prompt_flops.points.clear();
    const double bytes = 64.0 * 1024 * static_cast<double>(kernels::CacheRowBytes(cache(), 576));
    const double decode = Add("latent attention", "16 heads, 64 x 1 rows on 1024 keys",
                              AttendLatent(64, 1, 1024), 0, bytes);
    t->latent_bytes.points.emplace_back(kHeads, bytes / decode);
    const double mean = 1024 - 511 / 2.0, flops = 2.0 * 512 * mean * kHeads * (576 + 512);
    const double prompt = Add("latent attention", "16 heads, 512 rows on 1024 keys",
                              AttendLatent(1, 512, 1024), flops, 0);
    t->latent_prompt_flops.points.emplace_back(mean, flops / prompt);
  }

  // Attention to a window and to compressed entries of four positions.
  void Entries(plan::CostTable* t) {
    constexpr int64_t kRowWidth = 512, kWindow = 128, kRatio = 4;
    constexpr int32_t kRows = 16;
    const Batch batch(1, kRows, kKeys);
    const int64_t row_bytes = kernels::CacheRowBytes(cache(), kRowWidth);
    const Tensor rows = Filled(batch.slots() * row_bytes);
    Tensor entries = Filled(batch.slots() / kRatio * row_bytes);
    const Tensor q = Filled(kRows * kHeads * kRowWidth * 4);
    Tensor out = Filled(kRows * kHeads * kRowWidth * 4);
    const double seconds = MedianSeconds([&] {
      kernels::AttendToEntries({.q = static_cast<const float*>(q.raw()),
                                .ldq = kHeads * kRowWidth,
                                .cache = rows.raw(),
                                .dtype = cache(),
                                .heads = kHeads,
                                .width = kRowWidth,
                                .window = kWindow,
                                .entries = {.data = entries.mutable_raw(),
                                            .stride = row_bytes,
                                            .span = kernels::EntrySpan(kRatio),
                                            .dtype = cache()},
                                .ratio = kRatio,
                                .scale = 0.1f,
                                .page_size = Batch::kPage,
                                .sequences = batch.spans,
                                .out = static_cast<float*>(out.mutable_raw()),
                                .ldo = kHeads * kRowWidth},
                               pool_);
    });
    const double attended = kWindow + (kKeys - (kRows - 1) / 2.0) / kRatio;
    const double flops = 4.0 * kRows * attended * kHeads * kRowWidth;
    t->entry_flops =
        flops / Add("attention to entries", "16 heads, 16 rows on 1024 keys", seconds, flops, 0);
  }

  // On CPUs, the sender's threads copy rows to other ranks. So the rate of a link is that of a
  // copy.
  void Copies(plan::CostTable* t) {
    MemoryLoops loops(pool_, int64_t{1} << 27);
    t->host.rate = loops.Copy() / 2;
    report_.Machine("copies", t->host.rate * 1e-9, "GB/s");
  }

  static constexpr int kRounds = 5;

  ThreadPool pool_;
  Report& report_;
  Weights weights_;
};

}  // namespace

plan::CostTable CalibrateCpu(const Options& options, Report& report) {
  return Calibration(options.threads > 0 ? options.threads : CoreCount(), report).Run();
}

}  // namespace switchyard::bench
