#include "plan/step_cost.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/format.h"
#include "kernels/cache_rows.h"
#include "model/weights/shard.h"
#include "model/weights/source.h"

namespace switchyard::plan {
namespace {

using schedule::Phase;

// Most rows that an op of one block per row quantizes for the product that follows (kFewNormRows of
// kernels/cuda/elementwise).
constexpr double kFewNormRows = 128;

// The format in cost tables: panels take about the time of a format of the same size.
WeightFormat FormatInTables(WeightFormat format) {
  if (!HasPanels(format)) return format;
  if (IsInt4Panels(format)) return WeightFormat::kInt4Group;
  if (format == WeightFormat::kNvfp4Panels) return WeightFormat::kNvfp4;
  return format == WeightFormat::kQ8_0Panels ? WeightFormat::kInt8Channel : WeightFormat::kMxfp4;
}

MatrixFormat FormatOf(const WeightView& w, ActivationFormat rows = ActivationFormat::kNone) {
  const bool fp8 = w.format == WeightFormat::kFp8Block || w.format == WeightFormat::kFp8Channel;
  std::string name(Name(FormatInTables(w.format)));
  if (rows != ActivationFormat::kNone) name += fmt::format(", {}", Name(rows));
  return {.name = std::move(name),
          .bytes = BytesPerWeight(w.format, std::max(w.group_size, 1)),
          .fp8_rows = fp8};
}

}  // namespace

const char* Name(Part part) {
  constexpr const char* kNames[] = {"attention", "dense",  "router",  "dispatch",
                                    "experts",   "shared", "combine", "collectives",
                                    "head",      "host",   "stages"};
  return kNames[static_cast<size_t>(part)];
}

const char* Name(Limit limit) {
  constexpr const char* kNames[] = {"memory bandwidth", "arithmetic", "network", "starts of ops",
                                    "waits for other ranks"};
  return kNames[static_cast<size_t>(limit)];
}

void Cost::Add(const Cost& other, double times) {
  for (size_t i = 0; i < parts.size(); ++i) parts[i] += times * other.parts[i];
  for (size_t i = 0; i < limits.size(); ++i) limits[i] += times * other.limits[i];
}

double Cost::sum() const { return std::accumulate(parts.begin(), parts.end(), 0.0); }

ModelFormats FormatsOf(const ModelConfig& model, bool cuda, bool hopper) {
  // Builds only one layer of each kind, because layers of a kind have equal formats.
  ModelConfig few = model;
  few.layers.clear();
  for (const bool moe : {false, true}) {
    const auto layer = std::ranges::find(model.layers, moe, &LayerConfig::moe);
    if (layer != model.layers.end()) few.layers.push_back(*layer);
  }
  const auto placed = cuda ? std::optional(DType::kBF16) : std::nullopt;
  const ModelWeights w =
      BuildWeights(few, Mesh(), {}, *MakeCountingSource(few, placed, cuda && hopper));
  // Row format of CPU kernels. On GPUs the weight format determines the row format.
  ActivationFormat rows = ActivationFormat::kNone;
  const QuantizationConfig& quantization = model.quantization;
  if (!cuda && !quantization.rules.empty()) {
    rows = quantization.rules.front().scheme.activation;
  } else if (!cuda && quantization.none() && quantization.bfloat16_rows &&
             model.dtype == DType::kBF16) {
    rows = ActivationFormat::kBFloat16;
  }
  ModelFormats formats;
  for (size_t i = 0; i < few.layers.size(); ++i) {
    const LayerWeights& layer = w.layers[i];
    const AttentionConfig::Kind kind = few.attention.kind;
    formats.attention = FormatOf(kind == AttentionConfig::Kind::kLatent       ? layer.latent.o.w
                                 : kind == AttentionConfig::Kind::kCompressed ? layer.compressed.o.w
                                                                              : layer.grouped.o.w,
                                 rows);
    if (few.layers[i].dense()) formats.dense = FormatOf(layer.dense.gate, rows);
    if (!few.layers[i].moe) continue;
    formats.router = FormatOf(layer.moe.router.w);
    formats.experts = FormatOf(layer.moe.experts.front().gate, rows);
    if (layer.moe.has_shared) formats.shared = FormatOf(layer.moe.shared.gate, rows);
  }
  formats.head = FormatOf(w.head);
  return formats;
}

// An op whose rows pass through memory once.
void StepCosts::Small(Part part, double bytes, Cost* cost, double ops) const {
  cost->Add(part, Limit::kStart, ops * t_.op_seconds);
  cost->Add(part, Limit::kBandwidth, bytes / t_.bandwidth);
}

void StepCosts::Product(Part part, const MatrixFormat& format, double rows, double n, double k,
                        Cost* cost, double seconds_of_start, bool rounded) const {
  if (rows <= 0 || n <= 0) return;
  const std::string& name = format.name;
  const double memory = n * k * format.bytes / t_.WeightRate(name);
  const double flops = 2 * rows * n * k / t_.ProductRate(name, rows);
  const double chain = k * t_.ChainSeconds(name, rows);
  cost->Add(part, Limit::kStart, seconds_of_start < 0 ? t_.product_seconds : seconds_of_start);
  const double most = std::max({memory, flops, chain});
  const Limit limit = most == memory  ? Limit::kBandwidth
                      : most == flops ? Limit::kFlops
                                      : Limit::kStart;
  cost->Add(part, limit, most);
  if (format.fp8_rows && t_.cuda && !rounded)
    Small(part, rows * k * 3, cost);  // quantization of the rows
}

// Each matrix reads and writes columns of float32 rows, which can take longer than the products.
void StepCosts::HeadProducts(double rows, double heads, double n, double k, Cost* cost) const {
  Cost product;
  Product(Part::kAttention, MatrixFormat{}, rows, heads * n, k, &product);
  const double moved = t_.head_bytes > 0 ? rows * heads * (n + k) * kFloat / t_.head_bytes : 0;
  cost->Add(product);
  const double more = t_.product_seconds + moved - product.sum();
  if (more > 0) cost->Add(Part::kAttention, Limit::kBandwidth, more);
}

double StepCosts::Lane(const StepShape& shape) const {
  if (exchanges()) return shape.rows * r_.mesh.dp / r_.mesh.ep;  // a rank routes rows of its group
  return scatters() ? World(shape) / r_.mesh.ep : shape.rows;
}

void StepCosts::Qkv(const StepShape& shape, Cost* cost) const {
  const AttentionConfig& a = m_.attention;
  const auto hidden = static_cast<double>(m_.hidden);
  const auto heads = static_cast<double>(QueryHeads(a, mesh_).size());
  BeginBlock(Part::kAttention, shape.rows, cost);
  if (a.kind == AttentionConfig::Kind::kCompressed) return EntryQkv(shape, cost);
  if (a.kind == AttentionConfig::Kind::kGrouped) {
    const auto key = static_cast<double>(a.head_dim), value = static_cast<double>(a.value_dim());
    double kv_heads = 0;  // the mean over layers
    for (const LayerKind& kind : kinds_) kv_heads += kind.share * kind.kv_heads;
    const double width = heads * key + kv_heads * (key + value);
    // The norm writes FP8 rows if they are few.
    Product(Part::kAttention, f_.attention, shape.rows, width, hidden, cost, -1,
            /*rounded=*/shape.rows <= kFewNormRows);
    Small(Part::kAttention, shape.rows * width * (t_.cuda ? 8 : 16), cost, t_.cuda ? 1 : 4);
    return;
  }
  const double latent = a.kv_lora_rank + a.qk_rope_head_dim;
  const double q = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim);
  if (a.q_lora_rank > 0) {
    Product(Part::kAttention, f_.attention, shape.rows, a.q_lora_rank, hidden, cost);
    Small(Part::kAttention, shape.rows * a.q_lora_rank * 2 * kFloat, cost);
    Product(Part::kAttention, f_.attention, shape.rows, q, a.q_lora_rank, cost);
  } else {
    Product(Part::kAttention, f_.attention, shape.rows, q, hidden, cost);
  }
  Product(Part::kAttention, f_.attention, shape.rows, latent, hidden, cost);
  Small(Part::kAttention, shape.rows * (q + 2 * latent) * 2 * kFloat, cost, 3);
  if (indexers_ > 0) {
    Cost indexer;
    const double index_q = a.index_heads * a.index_head_dim;
    Product(Part::kAttention, f_.attention, shape.rows, index_q, a.q_lora_rank, &indexer);
    Product(Part::kAttention, f_.attention, shape.rows, a.index_head_dim, hidden, &indexer);
    Product(Part::kAttention, MatrixFormat{}, shape.rows, a.index_heads, hidden, &indexer);
    cost->Add(indexer, indexers_);
  }
  HeadProducts(shape.rows, heads, a.kv_lora_rank, a.qk_nope_head_dim, cost);
}

std::vector<StepCosts::LayerKind> StepCosts::KindsOf(const ModelConfig& model, const Mesh& mesh) {
  std::vector<LayerKind> kinds;
  const AttentionConfig& a = model.attention;
  const bool grouped = a.kind == AttentionConfig::Kind::kGrouped;
  const bool compressed = a.kind == AttentionConfig::Kind::kCompressed;
  const double share = 1.0 / static_cast<double>(model.layers.size());
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    const LayerConfig& layer = model.layers[i];
    LayerKind kind{.keys = std::numeric_limits<double>::infinity()};
    // With compressed attention, the indexer selects entries.
    for (const int64_t limit :
         {int64_t{layer.window}, int64_t{layer.chunk}, compressed ? 0 : a.index_topk})
      if (limit > 0) kind.keys = std::min(kind.keys, static_cast<double>(limit));
    kind.kv_heads = grouped ? static_cast<double>(KvHeads(model, i, mesh).size()) : 1;
    kind.ratio = layer.compress;
    kind.overlaps = layer.overlaps;
    auto known = std::ranges::find_if(kinds, [&](const LayerKind& other) {
      return other.keys == kind.keys && other.kv_heads == kind.kv_heads &&
             other.ratio == kind.ratio && other.overlaps == kind.overlaps;
    });
    if (known == kinds.end()) known = kinds.insert(known, kind);
    known->share += share;
  }
  return kinds;
}

// Reads of keys and values, and products with them: the mean over layers.
// `least`: the least time of latent attention.
void StepCosts::AttendRows(bool decode, double sequences, double rows, double keys, double least,
                           Cost* cost) const {
  if (rows <= 0) return;
  const AttentionConfig& a = m_.attention;
  const auto heads = static_cast<double>(QueryHeads(a, mesh_).size());
  const bool latent = a.kind == AttentionConfig::Kind::kLatent;
  const int64_t key = latent ? a.kv_lora_rank + a.qk_rope_head_dim : a.head_dim;
  const int64_t value = latent ? a.kv_lora_rank : a.value_dim();
  // Bytes of a cache row of a KV head. A latent row contains its value.
  const auto row = static_cast<double>(kernels::CacheRowBytes(r_.kv_dtype, key) +
                                       (latent ? 0 : kernels::CacheRowBytes(r_.kv_dtype, value)));
  const bool float32 = r_.kv_dtype == DType::kF32 && !t_.float32_decode_bytes.empty();
  const Curve& read = latent    ? t_.latent_bytes
                      : float32 ? t_.float32_decode_bytes
                                : t_.decode_bytes;
  double flops = 0, of_bytes = 0, tiles = 0, mean_visible = 0;
  for (const LayerKind& kind : kinds_) {
    const double visible = std::min(keys, kind.keys);
    mean_visible += kind.share * visible;
    flops += kind.share * 2 * rows * visible * heads * static_cast<double>(key + value);
    if (!decode) continue;
    const double bytes = kind.share * sequences * visible * kind.kv_heads * row;
    of_bytes += bytes / read.At(heads / kind.kv_heads);
    if (!latent) tiles += kind.share * sequences * kind.kv_heads * t_.tile_seconds.At(visible);
  }
  double of_flops = 0;
  if (indexers_ > 0) {  // they score all keys
    const auto width = static_cast<double>(a.index_head_dim);
    const auto index_row =
        static_cast<double>(kernels::CacheRowBytes(r_.kv_dtype, a.index_head_dim));
    flops += indexers_ * 2 * rows * keys * static_cast<double>(a.index_heads) * width;
    if (decode) of_bytes += indexers_ * sequences * keys * index_row / t_.latent_bytes.At(heads);
  }
  if (decode) {
    const double rate = latent ? LatentRate(decode, mean_visible) : t_.decode_flops;
    of_flops = rate > 0 ? flops / rate : 0;
  } else if (latent) {
    of_flops = flops / LatentRate(decode, keys);
  } else {
    const Curve& widths = t_.prompt_head_dims;
    const double relative = widths.empty() ? 1 : widths.At(static_cast<double>(a.head_dim));
    const bool own = r_.kv_dtype == DType::kF32 && !t_.float32_prompt_flops.empty();
    const Curve& rates = own ? t_.float32_prompt_flops : t_.prompt_flops;
    of_flops = flops / (rates.At(keys) * relative);
  }
  cost->Add(Part::kAttention, Limit::kStart, tiles);
  const double most = std::max({of_bytes, of_flops, least});
  const Limit limit = most == of_bytes   ? Limit::kBandwidth
                      : most == of_flops ? Limit::kFlops
                                         : Limit::kStart;
  cost->Add(Part::kAttention, limit, most);
}

void StepCosts::Attend(const StepShape& shape, Cost* cost) const {
  const AttentionConfig& a = m_.attention;
  const auto hidden = static_cast<double>(m_.hidden);
  const auto heads = static_cast<double>(QueryHeads(a, mesh_).size());
  const bool latent = a.kind == AttentionConfig::Kind::kLatent;
  const double own = shape.rows - shape.decode_rows;
  double width = heads * static_cast<double>(a.value_dim());  // of the output projection's rows
  if (a.kind == AttentionConfig::Kind::kCompressed) {
    AttendToEntries(shape.decode, shape.sequences, own, shape.keys, cost);
    AttendToEntries(true, shape.decode_rows, shape.decode_rows, shape.decode_keys, cost);
    const double of_group = static_cast<double>(a.heads) / static_cast<double>(a.output_groups);
    const double groups = heads / of_group;
    const auto rank = static_cast<double>(a.output_rank);
    HeadProducts(shape.rows, groups, rank, width / groups, cost);
    width = groups * rank;
  } else {
    const double least = latent ? t_.latent_seconds : 0;
    if (least == 0) cost->Add(Part::kAttention, Limit::kStart, t_.attention_seconds);
    AttendRows(shape.decode, shape.sequences, own, shape.keys, least, cost);
    AttendRows(true, shape.decode_rows, shape.decode_rows, shape.decode_keys, own > 0 ? 0 : least,
               cost);
  }
  if (latent) HeadProducts(shape.rows, heads, a.v_head_dim, a.kv_lora_rank, cost);
  Product(Part::kAttention, f_.attention, shape.rows, hidden, width, cost);
  AllReduce(shape.rows * hidden * kFloat, mesh_.attn_tp(), cost);
  EndBlock(Part::kAttention, shape.rows, cost);
}

void StepCosts::Route(const StepShape& shape, Cost* cost) const {
  const RouterConfig& router = m_.moe->router;
  const double lane = Lane(shape);
  const auto hidden = static_cast<double>(m_.hidden);
  BeginBlock(Part::kRouter, shape.rows, cost);
  // The rows with token ids, which have a copy of the normed row.
  if (by_token_ > 0) {
    Cost copies;
    Small(Part::kRouter, shape.rows * hidden * 2 * kFloat, &copies, 2);
    cost->Add(copies, by_token_);
  }
  FloatProduct(Part::kRouter, f_.router, lane, router.num_logits(), hidden, cost);
  Small(Part::kRouter, lane * router.num_logits() * 2 * kFloat, cost, t_.cuda ? 2.5 : 1);
  cost->Add(Part::kRouter, Limit::kFlops, lane * router.num_logits() * t_.select_seconds);
}

void StepCosts::Dense(const StepShape& shape, Cost* cost) const {
  const auto hidden = static_cast<double>(m_.hidden);
  const bool whole = mesh_.replicated_dense() || r_.mesh.tp == 1;
  const bool gathers = !whole && r_.mesh.dp > 1;
  const double rows = whole ? shape.rows / mesh_.attn_tp() : World(shape);
  const double width = static_cast<double>(m_.intermediate) / (whole ? 1 : r_.mesh.tp);
  BeginBlock(Part::kDense, shape.rows, cost);
  if (gathers) AllGather(rows * hidden * kFloat, r_.mesh.tp, cost);
  Product(Part::kDense, f_.dense, rows, 2 * width, hidden, cost);
  if (t_.cuda) Small(Part::kDense, rows * width * 6, cost);
  Product(Part::kDense, f_.dense, rows, hidden, width, cost);
  EndBlock(Part::kDense, shape.rows, cost);
  if (gathers) {
    AllGather(rows * hidden * kFloat, r_.mesh.tp, cost);  // a reduce-scatter costs as much
  } else if (whole) {
    AllGather(shape.rows * hidden * kFloat, mesh_.attn_tp(), cost);
  } else {
    AllReduce(rows * hidden * kFloat, r_.mesh.tp, cost);
  }
}

void StepCosts::Shared(const StepShape& shape, Cost* cost) const {
  const double all = m_.moe->shared_intermediate;
  if (all == 0) return;
  const bool whole = scatters();
  const double rows = whole ? shape.rows / mesh_.attn_tp() : shape.rows;
  const double width = whole ? all : all / r_.mesh.tp;
  const auto hidden = static_cast<double>(m_.hidden);
  Product(Part::kShared, f_.shared, rows, 2 * width, hidden, cost);
  if (t_.cuda) Small(Part::kShared, rows * width * 6, cost);
  Product(Part::kShared, f_.shared, rows, hidden, width, cost);
  if (!t_.cuda) Small(Part::kShared, rows * hidden * 3 * kFloat, cost);
}

void StepCosts::Finish(const StepShape& shape, Cost* cost) const {
  const auto hidden = static_cast<double>(m_.hidden);
  const double k = ExpertsOfToken(), lane = Lane(shape);
  if (exchanges()) {  // the token's rank sums its top-k slots
    Small(Part::kCombine, lane * hidden * (k * SizeOf(r_.row_dtype) + kFloat), cost);
  } else {
    const double all = scatters() ? World(shape) : shape.rows;
    const double rows = all * k / r_.mesh.ep;
    Small(Part::kCombine, (rows * (t_.cuda ? 2 : kFloat) + all * kFloat) * hidden, cost);
    if (scatters()) {
      AllGather(all * hidden * kFloat, r_.mesh.tp, cost);  // a reduce-scatter costs as much
    } else {
      AllReduce(all * hidden * kFloat, r_.mesh.tp, cost);
    }
  }
  if (scatters() && mesh_.attn_tp() > 1)
    AllGather(shape.rows * hidden * kFloat, mesh_.attn_tp(), cost);
  EndBlock(Part::kCombine, shape.rows, cost);
}

// Over several hosts, ranks of a host first add their rows, then hosts exchange the sums.
void StepCosts::AllReduce(double bytes, int ranks, Cost* cost) const {
  if (ranks <= 1 || bytes <= 0) return;
  const double near = std::min(ranks, r_.ranks_of_host), hosts = ranks / near;
  double start = 0, seconds = 0;
  if (near > 1) {
    const double share = 2 * (near - 1) / near;
    if (t_.all_reduce.empty()) {
      start = t_.host.seconds;
      seconds = share * bytes / t_.host.rate;
    } else {
      start = t_.all_reduce.points.front().second;
      seconds = (t_.all_reduce.At(bytes) - start) * share / 1.5;  // measured with four ranks
      const auto& last = t_.all_reduce.points.back();
      if (bytes > last.first) seconds *= bytes / last.first;
    }
  }
  if (hosts > 1) {
    start += t_.network.seconds;
    seconds += 2 * (hosts - 1) / hosts * bytes /
               std::max(1.0, r_.nic_rate * t_.network_share * near / r_.ranks_of_host);
  }
  cost->Add(Part::kCollectives, Limit::kStart, start);
  cost->Add(Part::kCollectives, Limit::kNetwork, seconds);
}

// `bytes`: size of the result.
void StepCosts::AllGather(double bytes, int ranks, Cost* cost) const {
  if (ranks <= 1 || bytes <= 0) return;
  const double near = std::min(ranks, r_.ranks_of_host), hosts = ranks / near;
  double start = t_.host.seconds / 2, seconds = bytes * (near - 1) / near / t_.host.rate;
  if (hosts > 1) {
    start += t_.network.seconds;
    seconds += bytes * (hosts - 1) / hosts /
               std::max(1.0, r_.nic_rate * t_.network_share * near / r_.ranks_of_host);
  }
  cost->Add(Part::kCollectives, Limit::kStart, start);
  cost->Add(Part::kCollectives, Limit::kNetwork, seconds);
}

StepCosts::PhaseCost StepCosts::Of(const StepShape& shape, bool moe, Phase phase,
                                   bool split) const {
  PhaseCost cost;
  const auto hidden = static_cast<double>(m_.hidden);
  switch (phase) {
    case Phase::kQkv:
      if (shape.rows > 0) Qkv(shape, &cost.compute);
      break;
    case Phase::kAttention:
      if (shape.rows <= 0) break;  // a group without tokens skips attention
      if (!split) Qkv(shape, &cost.compute);
      Attend(shape, &cost.compute);
      break;
    case Phase::kRoute:
      Route(shape, &cost.compute);
      break;
    case Phase::kDispatch:
      if (exchanges()) {
        const bool fp8 = f_.experts.fp8_rows && t_.cuda;
        const double row = hidden * (fp8 ? 1 + kFloat / 128 : SizeOf(r_.row_dtype));
        Exchange(Part::kDispatch, DistinctRanks(), row, shape, &cost);
      } else if (scatters()) {
        AllGather(World(shape) * hidden * kFloat, r_.mesh.tp, &cost.compute);
      }
      break;
    case Phase::kShared:
      if (m_.has_dense_beside()) {
        Dense(shape, &cost.compute);
      } else {
        Shared(shape, &cost.compute);
      }
      break;
    case Phase::kExperts:
      if (!moe) {
        Dense(shape, &cost.compute);
      } else {
        Cost down;
        Experts(shape, &cost.compute, down_under_combine() ? &down : &cost.compute);
      }
      break;
    case Phase::kCombine:
      if (exchanges())
        Exchange(Part::kCombine, ExpertsOfToken(), hidden * SizeOf(r_.row_dtype), shape, &cost);
      break;
    case Phase::kDown: {
      Cost up;
      if (down_under_combine()) Experts(shape, &up, &cost.compute);
      break;
    }
    case Phase::kFinish:
      Finish(shape, &cost.compute);
      break;
  }
  return cost;
}

Cost StepCosts::Ends(const StepShape& shape) const {
  Cost cost;
  const auto hidden = static_cast<double>(m_.hidden);
  const bool split = mesh_.dp() > 1 && !mesh_.replicated_dense();
  const int ranks = split ? r_.mesh.tp : mesh_.attn_tp();
  const double rows = split ? shape.logit_rows * r_.mesh.dp : shape.logit_rows;
  const auto width = static_cast<double>(m_.output_width());
  cost.Add(Part::kHost, Limit::kStart, t_.step_seconds);
  if (m_.has_embedding) {
    Small(Part::kHead, shape.rows * hidden * 2 * kFloat, &cost);
    AllReduce(shape.rows * hidden * kFloat, mesh_.attn_tp(), &cost);
    if (m_.streams) {  // copies of the row
      const auto count = static_cast<double>(m_.streams->count);
      Small(Part::kHead, shape.rows * hidden * 2 * count * kFloat, &cost, count);
    }
  }
  if (!m_.has_head) return cost;
  if (m_.streams)
    CollapseStreams(Part::kHead, shape.rows, static_cast<double>(m_.streams->count), &cost);
  Small(Part::kHead, rows * hidden * 4 * kFloat, &cost, 2);
  if (split) AllGather(rows * hidden * kFloat, r_.mesh.tp, &cost);
  Product(Part::kHead, f_.head, rows, width / ranks, hidden, &cost);
  AllGather(rows * width * kFloat, ranks, &cost);
  Small(Part::kHead, shape.logit_rows * width * kFloat, &cost);  // sampling
  return cost;
}

}  // namespace switchyard::plan
