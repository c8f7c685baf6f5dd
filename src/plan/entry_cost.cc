// The costs of attention to a window and to compressed entries, and of residual streams
// (DeepSeek-V4).
#include <algorithm>

#include "kernels/cache_rows.h"
#include "kernels/compressed.h"
#include "model/weights/shard.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

// Products of matrices whose sums and rows stay float32, with few columns.
void StepCosts::FloatProduct(Part part, const MatrixFormat& format, double rows, double n, double k,
                             Cost* cost) const {
  if (t_.router_flops <= 0) return Product(part, format, rows, n, k, cost, t_.op_seconds);
  const double flops = 2 * rows * n * k / t_.router_flops, chain = k * t_.chain_seconds;
  cost->Add(part, Limit::kStart, t_.op_seconds);
  cost->Add(part, flops > chain ? Limit::kFlops : Limit::kStart, std::max(flops, chain));
}

// The logits of all streams, the sum of squares, then the weighted sum.
void StepCosts::CollapseStreams(Part part, double rows, double logits, Cost* cost) const {
  const auto width = static_cast<double>(m_.residual_width());
  FloatProduct(part, {.name = "float32", .bytes = kFloat}, rows, logits, width, cost);
  Small(part, rows * (2 * width + static_cast<double>(m_.hidden)) * kFloat, cost, 2);
}

void StepCosts::BeginBlock(Part part, double rows, Cost* cost) const {
  const auto hidden = static_cast<double>(m_.hidden);
  if (!m_.streams) {
    const double bytes = t_.cuda ? 14 : 8;  // of an element, with the addition of a branch on GPUs
    return Small(part, rows * hidden * bytes, cost);
  }
  CollapseStreams(part, rows, static_cast<double>(m_.streams->logits()), cost);
  Small(part, rows * hidden * 2 * kFloat, cost);
}

void StepCosts::EndBlock(Part part, double rows, Cost* cost) const {
  const auto hidden = static_cast<double>(m_.hidden);
  if (m_.streams) {
    const double moved = 2 * static_cast<double>(m_.residual_width()) + hidden;
    Small(part, rows * moved * kFloat, cost);
  } else if (!t_.cuda) {  // adds the branch
    Small(part, rows * hidden * 3 * kFloat, cost);
  }
}

// The products of rows and gates, and the op that adds both to the blocks of their sequences.
void StepCosts::AddToBlocks(const StepShape& shape, double width, bool overlaps, Cost* cost) const {
  const auto hidden = static_cast<double>(m_.hidden);
  const double columns = width * (overlaps ? 2 : 1);
  for (int i = 0; i < 2; ++i)
    Product(Part::kAttention, MatrixFormat{}, shape.rows, columns, hidden, cost);
  const double state = 3 * columns;  // kernels::CompressStateFloats, read and written
  const double sequences = shape.sequences + shape.decode_rows;
  Small(Part::kAttention, (2 * shape.rows * columns + 2 * sequences * state) * kFloat, cost);
}

void StepCosts::EntryQkv(const StepShape& shape, Cost* cost) const {
  const AttentionConfig& a = m_.attention;
  const auto hidden = static_cast<double>(m_.hidden), rank = static_cast<double>(a.q_lora_rank);
  const auto width = static_cast<double>(a.head_dim);
  const double q = width * static_cast<double>(QueryHeads(a, mesh_).size());
  const auto index_heads = static_cast<double>(a.index_heads);
  const auto index_width = static_cast<double>(a.index_head_dim);
  Product(Part::kAttention, f_.attention, shape.rows, rank, hidden, cost);
  Product(Part::kAttention, f_.attention, shape.rows, q, rank, cost);
  Product(Part::kAttention, f_.attention, shape.rows, width, hidden, cost);
  // Norms of all three, rotations of the last two, and the row that is stored.
  Small(Part::kAttention, shape.rows * (2 * rank + 4 * q + 6 * width) * kFloat, cost, 6);
  for (const LayerKind& kind : kinds_) {
    if (kind.ratio == 0) continue;
    Cost entries;
    AddToBlocks(shape, width, kind.overlaps, &entries);
    if (kind.overlaps) {
      AddToBlocks(shape, index_width, /*overlaps=*/true, &entries);
      const double index_q = index_heads * index_width;
      Product(Part::kAttention, f_.attention, shape.rows, index_q, rank, &entries);
      Product(Part::kAttention, MatrixFormat{}, shape.rows, index_heads, hidden, &entries);
      Small(Part::kAttention, shape.rows * index_q * 2 * kFloat, &entries);  // rotation
    }
    cost->Add(entries, kind.share);
  }
}

double StepCosts::LatentRate(bool decode, double keys) const {
  if (!decode) return t_.latent_prompt_flops.At(keys);
  return t_.latent_decode_flops.empty() ? t_.latent_flops : t_.latent_decode_flops.At(keys);
}

// Reads of rows and entries, and products with them: the mean over layers. Decode reads them from
// memory; the rows of a prompt share them.
void StepCosts::AttendToEntries(bool decode, double sequences, double rows, double keys,
                                Cost* cost) const {
  if (rows <= 0) return;
  const AttentionConfig& a = m_.attention;
  const auto heads = static_cast<double>(QueryHeads(a, mesh_).size());
  const auto width = static_cast<double>(a.head_dim), topk = static_cast<double>(a.index_topk);
  const auto index_width = static_cast<double>(a.index_head_dim);
  const auto row_bytes = static_cast<double>(kernels::CacheRowBytes(r_.kv_dtype, a.head_dim));
  const auto index_bytes =
      static_cast<double>(kernels::CacheRowBytes(r_.kv_dtype, a.index_head_dim));
  double visible = 0, scored = 0, selecting = 0;  // means of rows
  for (const LayerKind& kind : kinds_) {
    const double all = kind.ratio > 0 ? keys / kind.ratio : 0;
    const bool selects = kind.overlaps && all > topk;
    visible += kind.share * (std::min(keys, kind.keys) + (selects ? topk : all));
    if (!selects) continue;  // all entries are selected without scores
    scored += kind.share * all;
    selecting += kind.share;
  }
  // A row is key and value.
  const double flops = 2 * rows * visible * heads * 2 * width;
  const double scores = 2 * rows * scored * static_cast<double>(a.index_heads) * index_width;
  // Kernels of attention do not use tensor cores. GPUs score as they score keys (SelectKeys).
  const double latent = LatentRate(decode, visible);
  const double rate = t_.entry_flops > 0 ? t_.entry_flops : latent;
  const double score_rate = t_.cuda ? latent : rate;
  const double computed =
      (rate > 0 ? flops / rate : 0) + (score_rate > 0 ? scores / score_rate : 0);
  const double bytes = decode ? sequences * (visible * row_bytes + scored * index_bytes) : 0;
  const double read = decode ? bytes / t_.latent_bytes.At(heads) : 0;
  cost->Add(Part::kAttention, Limit::kStart, t_.attention_seconds + selecting * t_.op_seconds);
  cost->Add(Part::kAttention, read > computed ? Limit::kBandwidth : Limit::kFlops,
            std::max(read, computed));
}

}  // namespace switchyard::plan
