#include "model/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace switchyard {
namespace {

// The arrays of PassRows, and token_rows.
constexpr int64_t kIds = 0, kPositions = 1, kSlots = 2, kLogitRows = 3, kTokenRows = 4,
                  kHiddenRows = 5, kArrays = 6;

// The bit of a recording key that stands for Pass::selects_keys, after those of the size and of the
// generation.
constexpr int kSelectsBit = 55;
constexpr uint64_t kSelects = uint64_t{1} << kSelectsBit;

// Elements of a token's rows of residual streams.
struct StreamSizes {
  int64_t logits = 0, squares = 0, mix = 0;
};
StreamSizes StreamElements(const ModelConfig& config) {
  if (!config.streams) return {};
  return {.logits = config.streams->logits(),
          .squares = 1,
          .mix = kernels::StreamMix(config.streams->count)};
}

}  // namespace

Pass::Pass(int index, const LayerContext& context, int64_t max_tokens, int64_t scratch_floats)
    : sequences(context.device.MakeSequences()),
      residual(context.device, max_tokens * context.config.residual_width()),
      normed(context.device, max_tokens * context.config.hidden),
      branch(context.device, normed.size()),
      stream_logits(context.device, max_tokens * StreamElements(context.config).logits),
      stream_squares(context.device, max_tokens * StreamElements(context.config).squares),
      stream_mix(context.device, max_tokens * StreamElements(context.config).mix),
      router_rows(context.device, context.config.has_token_routing()
                                      ? max_tokens * (context.config.hidden + 1)
                                      : 0),
      shortcut(context.device, context.config.has_shortcuts() ? normed.size() : 0),
      latent_in(context.device,
                context.config.has_moe() ? context.config.moe->latent * max_tokens : 0),
      latent_out(context.device, latent_in.size()),
      joined(context.device, context.config.attention.input_width * max_tokens),
      scratch(context.device, scratch_floats),
      index_(index),
      context_(context),
      max_tokens_(std::max<int64_t>(1, max_tokens)),
      arrays_(context.device.Allocate(kArrays * max_tokens_ * sizeof(int32_t))) {
  if (context.config.has_moe())
    routed_rows_ =
        context.device.Allocate(max_tokens_ * context.config.moe->router.top_k * sizeof(int32_t));
  if (const int64_t topk = context.config.attention.index_topk)
    selected_keys_ = context.device.Allocate(max_tokens_ * topk * sizeof(int32_t));
  // Each sequence of a batch has a row, also after padding.
  if (context.config.has_states() && !context.device.is_cpu())
    states_ = context.device.Allocate(max_tokens_ * sizeof(kernels::StateSpan));
}

void Pass::Begin(const ForwardBatch& batch, KvStorage& cache, const int32_t* drawn,
                 const MicroBatchPlace& of_batch) {
  const ModelConfig& config = context_.config;
  const int64_t tokens = batch.num_tokens();
  CHECK_LE(tokens, max_tokens_);
  const auto counts_of = [&](const std::vector<int64_t>& given, int64_t own,
                             std::vector<int64_t>& counts) {
    counts = given;
    if (counts.empty()) counts.push_back(own);
    CHECK_EQ(static_cast<int>(counts.size()), context_.mesh.dp());
    CHECK_EQ(counts[context_.mesh.dp_rank()], own);
  };
  counts_of(batch.group_tokens, tokens, group_tokens);
  counts_of(batch.group_decode_tokens, batch.decode_tokens, group_decode_tokens);
  counts_of(batch.group_logit_rows, std::ssize(batch.logit_rows), group_logit_rows);
  partition.Reset(context_.mesh, group_tokens);

  rows = {.tokens = tokens,
          .ids = Upload(kIds, batch.tokens),
          .positions = Upload(kPositions, batch.positions),
          .slots = Upload(kSlots, batch.slots),
          .logit_rows = static_cast<int64_t>(batch.logit_rows.size()),
          .logit_row = Upload(kLogitRows, batch.logit_rows),
          .hidden = batch.hidden,
          .hidden_row = Upload(kHiddenRows, batch.hidden_rows),
          .own_hidden = batch.own_hidden};
  if (!batch.token_rows.empty()) {
    CHECK_EQ(batch.token_rows.size(), batch.tokens.size());
    CHECK(drawn != nullptr);
    context_.device.GatherTokens(Array(kIds), Upload(kTokenRows, batch.token_rows), drawn, tokens);
  }
  kv = &cache;
  given_sequences_ = batch.sequences;
  sequences->Set(given_sequences_, cache.page_size());
  const int64_t topk = config.attention.index_topk;
  selects_keys = topk > 0 && std::ranges::any_of(given_sequences_, [&](const auto& sequence) {
                   return sequence.kv_len > topk;
                 });
  // Other draft models set own_hidden too, but have no hidden rows, hence no parents.
  inherits_keys = config.is_mtp && config.attention.drafts_share_index && batch.own_hidden;
  // A pipeline stage may have none of the layers with states.
  CHECK(batch.states.size() == batch.sequences.size() ||
        (batch.states.empty() && !config.has_states()));
  static const std::vector<kernels::StateSpan> kNone;
  SetStates(config.has_states() ? batch.states : kNone);
  depth = batch.depth;
  CHECK(depth >= 0 && depth < config.mtp_depths);
  only_logit_rows = batch.only_logit_rows;
  CHECK(!only_logit_rows || !config.has_states());
  CHECK(!only_logit_rows || (context_.device.is_cpu() && !batch.routed_experts));

  number = batch.pass;
  place = of_batch;
  if (moe) {
    moe->pass = number;
    moe->micro_batch = place.index;
  }
  aborted = branch_pending = projected = false;
  routed.clear();
  if (!batch.routed_experts || !config.has_moe()) return;
  routed.assign(tokens * config.num_layers() * config.moe->router.top_k, -1);
}

void Pass::SetStates(const std::vector<kernels::StateSpan>& spans) {
  states = spans.data();
  num_states = std::ssize(spans);
  has_chunked_rows = std::ranges::any_of(spans, [](const auto& span) { return span.chunked > 0; });
  if (!states_) return;
  CHECK_LE(num_states, max_tokens_);
  if (!spans.empty())
    context_.device.CopyIn(states_.get(), spans.data(), spans.size() * sizeof(kernels::StateSpan));
  states = static_cast<const kernels::StateSpan*>(states_.get());
}

uint64_t Pass::RecordingKey(uint64_t size) {
  CHECK_EQ(size >> 32, 0u);
  CHECK_EQ(generation_ >> (kSelectsBit - 32), 0u);
  CHECK_LT(index_, 128);
  if (selects_keys) size |= kSelects;
  if (seen_sizes_.insert(size).second) {
    if (moe) moe->clocked = false;
    return 0;
  }
  const uint64_t variant = moe && moe->clocked ? kernels::Device::kVariant : 0;
  return variant | static_cast<uint64_t>(index_) << 56 | static_cast<uint64_t>(generation_) << 32 |
         size;
}

void Pass::KeepLogitRows(Activations& values) {
  const int64_t width = context_.config.hidden;
  context_.device.CopyRows({.x = values.data(),
                            .ldx = width,
                            .rows = rows.logit_row,
                            .y = branch.data(),
                            .ldy = width,
                            .m = rows.logit_rows,
                            .n = width});
  std::swap(values, branch);
}

// `kept` is ascending, so no row is overwritten before it is copied.
void Pass::KeepLogitStreams(std::span<const int32_t> kept) {
  const int64_t width = context_.config.residual_width();
  for (int64_t i = 0; i < std::ssize(kept); ++i)
    if (kept[i] != i)
      std::copy_n(residual.data() + kept[i] * width, width, residual.data() + i * width);
}

// As KeepLogitStreams.
void Pass::KeepSelectedKeys(std::span<const int32_t> kept) {
  if (!selects_keys) return;
  const int64_t topk = context_.config.attention.index_topk;
  for (int64_t i = 0; i < std::ssize(kept); ++i)
    if (kept[i] != i)
      std::copy_n(selected_keys() + kept[i] * topk, topk, selected_keys() + i * topk);
}

// Accesses the arrays directly: only_logit_rows is for CPUs only, so they are in host memory.
void Pass::KeepLogitRows() {
  CHECK(!branch_pending);
  const std::span<int32_t> kept(Array(kLogitRows), static_cast<size_t>(rows.logit_rows));
  if (rows.logit_rows < rows.tokens) {
    if (context_.config.streams) {
      KeepLogitStreams(kept);
    } else {
      KeepLogitRows(residual);
    }
    KeepLogitRows(normed);
    if (shortcut.size() > 0) KeepLogitRows(shortcut);
    for (const int64_t array : {kPositions, kSlots})
      for (size_t i = 0; i < kept.size(); ++i) Array(array)[i] = Array(array)[kept[i]];
    KeepSelectedKeys(kept);
    kept_sequences_.clear();
    auto row = kept.begin();
    for (const kernels::SequenceSpan& all : given_sequences_) {
      const int32_t end = all.row_begin + all.rows;
      const auto first = row;
      while (row != kept.end() && *row < end) ++row;
      if (row == first) continue;
      kernels::SequenceSpan span = all;
      span.row_begin = static_cast<int32_t>(first - kept.begin());
      span.rows = static_cast<int32_t>(row - first);
      CHECK_EQ(*first, end - span.rows);  // the kept rows are the last ones
      kept_sequences_.push_back(span);
    }
    std::iota(kept.begin(), kept.end(), 0);
    sequences->Set(kept_sequences_, kv->page_size());
    rows.tokens = rows.logit_rows;
  }
  group_tokens = group_decode_tokens = group_logit_rows;  // one row of each sequence, as in decode
  partition.Reset(context_.mesh, group_tokens);
}

const int32_t* Pass::Upload(int64_t array, const std::vector<int32_t>& values) {
  int32_t* to = Array(array);
  if (!values.empty()) context_.device.CopyIn(to, values.data(), values.size() * sizeof(int32_t));
  return to;
}

}  // namespace switchyard
