// `switchyard bench calibrate --device cuda`: the rates of this host's GPUs. Runs the cases of
// `bench kernels` and `bench exchange` that a cost table needs, and derives its entries from them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/calibration.h"
#include "bench/cuda/expert_choice.h"
#include "bench/cuda/gpu_benches.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/gpus.h"

namespace switchyard::bench {
namespace {

constexpr double kMicro = 1e-6;

// The sizes in the shape of a grouped product: "fp8 masked 32 groups 6127 x 6144 x 7168".
struct Grouped {
  std::string format;
  bool masked = false;
  int groups = 0;
  double rows = 0;  // of all groups
  long long n = 0, k = 0;

  double mean() const { return rows / groups; }
  bool packed() const { return format != "bf16" && format != "fp8"; }
  bool few() const { return mean() >= 2 && mean() <= 6; }  // the weights limit the time
  bool many() const { return mean() >= (packed() ? 20 : 40); }
  // Rows of an expert in the table: packed formats have those of whole tiles.
  double rows_of_expert() const { return packed() && mean() <= 32 ? 32 : std::round(mean()); }
};

bool Parse(const std::string& shape, Grouped* g) {
  char format[16], kind[16];
  long long rows = 0;
  if (std::sscanf(shape.c_str(), "%15s %15s %d groups %lld x %lld x %lld", format, kind, &g->groups,
                  &rows, &g->n, &g->k) != 6)
    return false;
  g->format = format;
  g->masked = std::string_view(kind) == "masked";
  g->rows = static_cast<double>(rows);
  return true;
}

// Decode over a cache that is larger than L2, by sequences and keys. kFullKeys: so many keys that
// reads hide the start of a tile.
constexpr int kFullKeys = 4096;
constexpr std::pair<int, int> kShortDecodes[] = {{256, 128}, {128, 1024}, {256, 2048}};
struct Prompt {
  int batch, rows, keys;
};
constexpr Prompt kPrompts[] = {{1, 1024, 1024}, {1, 4096, 4096}, {1, 2048, 16384}};
// In a chain, with the engine's page size: calls start early, as in a pass.
constexpr int kChainKeys = 520, kChainBatch = 256;  // decode
constexpr Prompt kChainPrompt = {16, 512, 512};
constexpr const char* kGroupedHeads = "qwen3-30b 32/4 x 128";
constexpr const char* kNarrowHeads = "gpt-oss 64/8 x 64";
constexpr double kKvHeads = 4, kKeyBytes = 4 * 2 * 128 * 2;  // of one key in all KV heads
constexpr const char* kLatentHeads = "deepseek-v3 128 heads";
constexpr const char* kFewLatentHeads = "deepseek-v3 16 heads";
constexpr double kLatentKeyBytes = 576 * 2;

std::string AttentionShape(const char* heads, int batch, int rows, int keys) {
  return fmt::format("{} {} x {} rows {} keys", heads, batch, rows, keys);
}
std::string DecodeShape(const char* heads, int batch, int keys) {
  return AttentionShape(heads, batch, 1, keys);
}

std::string ChainedShape(const char* heads, int batch, int rows, int keys) {
  return AttentionShape(heads, batch, rows, keys) + ", pages of 16 in a chain";
}

constexpr int64_t kDenseRows[] = {64, 128, 256, 512, 1024, 4096};
// Products in a chain. The narrowest one has few tiles: its time is the start and the columns.
constexpr int kShortColumns = 2048, kLongColumns = 8192;
std::string NarrowShape(int columns) {
  return fmt::format("bf16 1 x 256 x {} in a chain", columns);
}
// The tiles of this product fill a part of the device. With more rows, most of the device.
constexpr int64_t kChainRows[] = {1, 8, 16, 32, 64, 128, 256, 512};
constexpr double kChainColumns = 4096;
std::string ChainShape(const char* format, int64_t rows) {
  return fmt::format("{} {} x 2048 x 4096 in a chain", format, rows);
}
// Experts in a chain: 8 of 128 experts of 2048 x 768.
constexpr int kExpertTokens[] = {8, 32, 128, 256, 512, 1024, 2048, 4096, 8192};
constexpr int kExperts = 128, kSlots = 8;
constexpr double kHidden = 2048, kWidth = 768;
// Cases of uneven experts.
constexpr int kUnevenTokens = 512, kPopular[] = {8, 24};
constexpr double kMeanRows = 1.0 * kUnevenTokens * kSlots / kExperts;
std::string ExpertShape(const char* format, int tokens) {
  return fmt::format("{} {} tokens, 8 of 128 experts of 2048 x 768", format, tokens);
}
constexpr const char* kHeadShapes[] = {"bfloat16 16 heads 4096 x 512 x 128",
                                       "bfloat16 16 heads 4096 x 128 x 512"};
constexpr const char* kRowsShape = "4096 x 7168";
constexpr const char* kRowOps[] = {"rms-norm", "add", "copy-rows"};
constexpr size_t kAllReduceKb[] = {8, 64, 1024, 16384, 65536};

std::string DenseShape(const char* format, int64_t rows) {
  return fmt::format("{} {} x 7168 x 16384 in a chain", format, rows);
}

bool IsUsedAttention(const std::string& shape) {
  for (const char* heads : {kGroupedHeads, kNarrowHeads, kLatentHeads, kFewLatentHeads})
    for (const int batch : {1, kChainBatch, kChainPrompt.batch})
      for (const auto& [rows, keys] :
           {std::pair(1, kChainKeys), std::pair(kChainPrompt.rows, kChainPrompt.keys)})
        if (shape == ChainedShape(heads, batch, rows, keys)) return true;
  for (const auto& [batch, keys] : kShortDecodes)
    if (shape == DecodeShape(kGroupedHeads, batch, keys)) return true;
  for (const char* heads : {kGroupedHeads, kLatentHeads, kFewLatentHeads})
    if (shape == DecodeShape(heads, 128, kFullKeys)) return true;
  for (const Prompt& p : kPrompts)
    for (const char* heads : {kGroupedHeads, kNarrowHeads})
      if (shape == AttentionShape(heads, p.batch, p.rows, p.keys)) return true;
  return std::ranges::any_of(kPrompts, [&](const Prompt& p) {
    return shape == AttentionShape(kLatentHeads, p.batch, p.rows, p.keys);
  });
}

bool IsUsed(const std::string& name, const std::string& shape) {
  if (name == "grouped-gemm") {
    Grouped g;
    if (!Parse(shape, &g)) return false;
    if (!g.masked) return g.groups == 8;
    return g.groups == 32 && (g.few() || g.many());
  }
  if (name == "dense-gemm") {
    for (const int columns : {kShortColumns, kLongColumns})
      if (shape == NarrowShape(columns)) return true;
    for (const char* format : {"bf16", "fp8"}) {
      for (const int64_t rows : kDenseRows)
        if (shape == DenseShape(format, rows)) return true;
      for (const int64_t rows : kChainRows)
        if (shape == ChainShape(format, rows)) return true;
    }
    return false;
  }
  if (name == "attention") return IsUsedAttention(shape);
  if (shape == kRowsShape) return std::ranges::find(kRowOps, name) != std::end(kRowOps);
  if (name == "add-norm") return shape.starts_with("1 x ");
  if (name == "expert-chain") return true;
  if (name == "head-linear") return std::ranges::find(kHeadShapes, shape) != std::end(kHeadShapes);
  if (name == "dispatch")
    return shape.ends_with("tokens 8 fp8") || shape.ends_with("tokens 4096 bf16");
  if (name == "all-reduce")
    return std::ranges::any_of(kAllReduceKb, [&](size_t kb) {
      return shape.find(fmt::format(" {} KB ", kb)) != std::string::npos;
    });
  return false;
}

// The results of the cases that were run.
class Results {
 public:
  explicit Results(const Report& report) : all_(report.results()) {}

  // Error kResource names a case that was not run.
  const Result& Of(std::string_view name, const std::string& shape) const {
    const auto found = std::ranges::find_if(
        all_, [&](const Result& r) { return r.name == name && r.shape == shape; });
    if (found == all_.end()) throw Resource("bench calibrate: no result of {} {}", name, shape);
    return *found;
  }
  const std::vector<Result>& all() const { return all_; }

 private:
  const std::vector<Result>& all_;
};

// The name in cost tables; the benchmarks use shorter ones.
std::string TableName(const std::string& format) {
  if (format == "bf16") return "bfloat16";
  if (format == "fp8") return "fp8-block";
  return format == "int4" ? "int4-group" : format;
}

// Products of all formats. Cases of equal rows and different matrices are averaged by time.
void SetProducts(const Results& results, plan::CostTable* t) {
  struct Sum {
    double bytes = 0, flops_of_row = 0, seconds = 0;  // flops_of_row: with a row of each group
  };
  std::map<std::string, Sum> weights;
  std::map<std::string, std::map<double, Sum>> experts;  // by rows of a group
  for (const Result& r : results.all()) {
    Grouped g;
    if (r.name != "grouped-gemm" || !Parse(r.shape, &g)) continue;
    const std::string name = TableName(g.format);
    Sum& sum = g.few() ? weights[name] : experts[name][g.rows_of_expert()];
    sum.bytes += r.bytes;
    sum.flops_of_row += r.flops / g.mean();
    sum.seconds += r.seconds;
  }
  t->weights.clear();
  t->experts.clear();
  t->products.clear();
  for (const auto& [name, sum] : weights) t->weights[name] = sum.bytes / sum.seconds;
  // Packed formats: the products of all rows of a tile of 32, of which 20 were given.
  for (const auto& [name, by_rows] : experts)
    for (const auto& [rows, sum] : by_rows)
      t->experts[name].points.emplace_back(rows, rows * sum.flops_of_row / sum.seconds);
}

// Dense products: their start, the time of a column, and the rates of products of many tiles.
void SetDense(const Results& results, plan::CostTable* t) {
  const auto narrow = [&](int columns) {
    return results.Of("dense-gemm", NarrowShape(columns)).seconds;
  };
  t->chain_seconds =
      std::max(0.0, narrow(kLongColumns) - narrow(kShortColumns)) / (kLongColumns - kShortColumns);
  t->product_seconds = std::clamp(narrow(kShortColumns) - kShortColumns * t->chain_seconds,
                                  0.2 * kMicro, 5 * kMicro);
  const auto beyond_start = [&](double seconds) {
    return std::max(seconds - t->product_seconds, 0.1 * seconds);
  };
  t->chains.clear();
  for (const char* format : {"bf16", "fp8"}) {
    const std::string name = TableName(format);
    for (const int64_t rows : kDenseRows) {
      const Result& r = results.Of("dense-gemm", DenseShape(format, rows));
      t->products[name].points.emplace_back(static_cast<double>(rows),
                                            r.flops / beyond_start(r.seconds));
    }
    for (const int64_t rows : kChainRows) {
      const double seconds = results.Of("dense-gemm", ChainShape(format, rows)).seconds;
      t->chains[name].points.emplace_back(static_cast<double>(rows),
                                          beyond_start(seconds) / kChainColumns);
    }
  }
}

// Uneven rows: the time beyond that of each expert's rows at its rate, by least squares over the
// cases in which few experts are popular. `products`: the seconds of the products of a case.
template <typename Products>
void SetUneven(const Products& products, plan::CostTable* t) {
  t->uneven.clear();
  for (const char* format : {"bf16", "fp8"}) {
    const std::string name = TableName(format);
    constexpr double kSize = plan::CostTable::kSmallExpert;
    const double read = kSize * (name == "bfloat16" ? 2 : 1) / t->weights.at(name);
    double product = 0, square = 0;
    for (const int popular : kPopular) {
      std::mt19937 random(kUnevenTokens);  // as in the case
      double of_rows = 0, deviation = 0;
      for (int call = 0; call < kExpertChainCalls; ++call) {
        const std::vector<int32_t> chosen =
            ChooseExperts(kUnevenTokens, kExperts, kSlots, popular, random);
        double squares = 0;
        for (const double rows : RowsOfExperts(chosen, kExperts)) {
          squares += std::pow(rows - kMeanRows, 2) / kExperts;
          if (rows > 0)
            of_rows += std::max(read, 2 * rows * kSize / t->ExpertRate(name, rows, kSize));
        }
        deviation += std::sqrt(squares) / kExpertChainCalls;
      }
      const std::string shape =
          fmt::format("{}, {} popular", ExpertShape(format, kUnevenTokens), popular);
      const double more = products(format, shape, kUnevenTokens) - 2 * t->grouped_seconds -
                          of_rows / kExpertChainCalls;
      const double uneven = std::min(deviation, plan::CostTable::kMostUneven) -
                            std::sqrt(kMeanRows * (1.0 - 1.0 * kSlots / kExperts));
      product += more * uneven;
      square += uneven * uneven;
    }
    t->uneven[name] = std::max(0.0, product / square) / (kHidden + kWidth);
  }
}

// Small experts in a chain: copy of rows, gate and up product, activation, down product, sums. The
// small ops are subtracted as StepCosts adds them. With one token, what remains beside the time of
// the weights is the start of two grouped products.
void SetSmallExperts(const Results& results, plan::CostTable* t) {
  const auto products = [&](const char* format, const std::string& shape, int tokens) {
    const double element = format == std::string_view("fp8") ? 1 : 2, rows = kSlots * tokens;
    const double bytes = rows * (kHidden * element + kWidth * (4 + element) + kHidden * 2) +
                         tokens * kHidden * 2 * sizeof(float);
    const double all = results.Of("expert-chain", shape).seconds;
    return std::max(all - 3 * t->op_seconds - bytes / t->bandwidth, 0.1 * all);
  };
  double starts = 0;
  for (const char* format : {"bf16", "fp8"}) {
    const double bytes = results.Of("expert-chain", ExpertShape(format, 1)).bytes;
    starts +=
        products(format, ExpertShape(format, 1), 1) - bytes / t->weights.at(TableName(format));
  }
  t->grouped_seconds = std::clamp(starts / 4, 0.5 * kMicro, 20 * kMicro);
  t->small_experts.clear();
  for (const char* format : {"bf16", "fp8"})
    for (const int tokens : kExpertTokens) {
      const Result& r = results.Of("expert-chain", ExpertShape(format, tokens));
      const double all = products(format, ExpertShape(format, tokens), tokens);
      const double seconds = std::max(all - 2 * t->grouped_seconds, 0.1 * all);
      // Rows of an expert that has rows. With the fewest tokens nearly all of these have one row.
      const double weights = format == std::string_view("fp8") ? r.bytes : r.bytes / 2;
      const double rows = tokens == kExpertTokens[0] ? 1 : r.flops / (2 * weights);
      t->small_experts[TableName(format)].points.emplace_back(rows, 2 * rows * weights / seconds);
    }
  SetUneven(products, t);
}

// The times of ops that move few bytes, and the bandwidth of ops that move many.
void SetSmallOps(const Results& results, plan::CostTable* t) {
  double bytes = 0, seconds = 0;
  for (const char* name : kRowOps) {
    const Result& r = results.Of(name, kRowsShape);
    bytes += r.bytes;
    seconds += r.seconds;
  }
  t->bandwidth = bytes / seconds;
  t->op_seconds = results.Of("add-norm", "1 x 2048").seconds;
}

void SetAttention(const Results& results, plan::CostTable* t) {
  const auto seconds = [&](const std::string& shape) {
    return results.Of("attention", shape).seconds;
  };
  t->attention_seconds = seconds(ChainedShape(kGroupedHeads, 1, 1, kChainKeys));
  t->latent_seconds = seconds(ChainedShape(kLatentHeads, 1, 1, kChainKeys));
  // The time of a case without that of a call with one sequence.
  const auto beyond_start = [&](const std::string& shape) {
    const double all = seconds(shape);
    return std::max(all - t->attention_seconds, 0.1 * all);
  };
  t->decode_bytes.points = {
      {8, 128 * kFullKeys * kKeyBytes / beyond_start(DecodeShape(kGroupedHeads, 128, kFullKeys))}};
  t->decode_flops = 0;  // decode_bytes includes the arithmetic
  t->tile_seconds.points.clear();
  const auto add_tiles = [&](int batch, int keys, const std::string& shape) {
    const double reads = batch * keys * kKeyBytes / t->decode_bytes.At(8);
    const double more = beyond_start(shape) - reads;
    t->tile_seconds.points.emplace_back(keys, std::max(more / (batch * kKvHeads), 1e-10));
  };
  add_tiles(kChainBatch, kChainKeys, ChainedShape(kGroupedHeads, kChainBatch, 1, kChainKeys));
  for (const auto& [batch, keys] : kShortDecodes)
    add_tiles(batch, keys, DecodeShape(kGroupedHeads, batch, keys));
  std::ranges::sort(t->tile_seconds.points);
  t->tile_seconds.points.emplace_back(kFullKeys, 1e-10);
  // Latent attention: many sequences hide the latency of one.
  t->latent_bytes.points = {{16, 128 * kFullKeys * kLatentKeyBytes /
                                     seconds(DecodeShape(kFewLatentHeads, 128, kFullKeys))}};
  const Result& many = results.Of("attention", DecodeShape(kLatentHeads, 128, kFullKeys));
  const Result& few =
      results.Of("attention", ChainedShape(kLatentHeads, kChainBatch, 1, kChainKeys));
  t->latent_flops = many.flops / many.seconds;
  t->latent_decode_flops.points = {{kChainKeys, few.flops / few.seconds},
                                   {kFullKeys, t->latent_flops}};
  double head_bytes = 0, head_seconds = 0;
  for (const char* shape : kHeadShapes) {
    const Result& r = results.Of("head-linear", shape);
    head_bytes += r.bytes;
    head_seconds += std::max(r.seconds - t->product_seconds, 0.1 * r.seconds);
  }
  t->head_bytes = head_bytes / head_seconds;
  const auto prompts = [&](const char* heads, plan::Curve* curve) {
    const auto add = [&](const Prompt& p, const std::string& shape) {
      const double beyond =
          std::string_view(heads) == kLatentHeads ? seconds(shape) : beyond_start(shape);
      curve->points.emplace_back(p.keys - (p.rows - 1) / 2.0,
                                 results.Of("attention", shape).flops / beyond);
    };
    const auto& [batch, rows, keys] = kChainPrompt;
    curve->points.clear();
    add(kChainPrompt, ChainedShape(heads, batch, rows, keys));
    for (const Prompt& p : kPrompts) add(p, AttentionShape(heads, p.batch, p.rows, p.keys));
  };
  prompts(kGroupedHeads, &t->prompt_flops);
  plan::Curve narrow;
  prompts(kNarrowHeads, &narrow);
  double logs = 0;  // of the rates of narrow heads, relative to those of wide ones
  for (size_t i = 0; i < narrow.points.size(); ++i)
    logs += std::log(narrow.points[i].second / t->prompt_flops.points[i].second);
  t->prompt_head_dims.points = {{64, std::exp(logs / static_cast<double>(narrow.points.size()))},
                                {128, 1}};
  prompts(kLatentHeads, &t->latent_prompt_flops);
}

// Tables have the all-reduce of four ranks. The start does not depend on the number of ranks; the
// bytes that a rank sends do.
void SetLinks(const Results& results, int ranks, plan::CostTable* t) {
  t->host.seconds = results.Of("dispatch", fmt::format("ranks {} tokens 8 fp8", ranks)).seconds;
  const Result& many = results.Of("dispatch", fmt::format("ranks {} tokens 4096 bf16", ranks));
  t->host.rate = many.bytes / many.seconds;
  std::map<size_t, double> fastest;  // of all backends, by KB
  for (const Result& r : results.all())
    for (const size_t kb : kAllReduceKb)
      if (r.name == "all-reduce" && r.shape.find(fmt::format(" {} KB ", kb)) != std::string::npos) {
        double& seconds = fastest.try_emplace(kb, r.seconds).first->second;
        seconds = std::min(seconds, r.seconds);
      }
  t->all_reduce.points.clear();
  const double start = fastest.begin()->second, share = 2.0 * (ranks - 1) / ranks;
  for (const auto& [kb, seconds] : fastest)
    t->all_reduce.points.emplace_back(static_cast<double>(kb << 10),
                                      start + std::max(0.0, seconds - start) * 1.5 / share);
}

}  // namespace

plan::CostTable CalibrateCuda(const Options& options, Report& report) {
  // A child process looks for GPUs, before this process uses one.
  const std::vector<GpuInfo>& gpus = FindGpus();
  CudaRanks({}, 1);
  report.Restrict(IsUsed);
  const GpuMachine machine = MeasureGpuMachine(options.gpu, report);
  if (!cuda::IsHopper())
    throw Invalid(
        "bench calibrate: GPU {} has no kernels for products of FP8 and groups; want a "
        "Hopper GPU (H100, H200)",
        options.gpu);
  const GpuInfo& gpu = gpus.at(static_cast<size_t>(options.gpu));
  const std::string& name = gpu.name;
  const auto shipped = plan::ShippedTableOf(name);
  plan::CostTable t = shipped ? *shipped : plan::ShippedTable("h200");
  GroupedGemmBench(options, machine, report);
  W4A16Bench(options, machine, report);
  ExpertChainBench(options, machine, report);
  DenseGemmBench(options, machine, report);
  AttentionBench(options, machine, report);
  DeviceOpsBench(options, machine, report);
  // NVLink connects the GPUs of a host, so two of them give the rates of a link.
  const int ranks = cuda::DeviceCount() >= 2 ? 2 : 1;
  if (ranks > 1) {
    Options of_links = options;
    of_links.ranks = ranks;
    of_links.tokens = {8, 4096};
    CollectivesBench(of_links, DispatchCombineBench(of_links, report), report);
    cuda::UseDevice(options.gpu);
  }
  const Results results(report);
  SetProducts(results, &t);
  SetSmallOps(results, &t);
  SetDense(results, &t);
  SetSmallExperts(results, &t);
  SetAttention(results, &t);
  if (ranks > 1) SetLinks(results, ranks, &t);
  t.memory_bytes = static_cast<double>(gpu.total_bytes);
  t.source = fmt::format(
      "switchyard bench calibrate: {}; {}links of several hosts and the time per step are those of "
      "the shipped table {}",
      name, ranks > 1 ? "" : "links of this host, ", t.name);
  t.name = name;
  t.measured = true;
  return t;
}

}  // namespace switchyard::bench
