#include "model/pass.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr int64_t kArrays = 6;  // of PassRows, and token_rows

}  // namespace

Pass::Pass(int index, const LayerContext& context, int64_t max_tokens, int64_t scratch_floats)
    : sequences(context.device.MakeSequences()),
      residual(context.device, max_tokens * context.config.hidden),
      normed(context.device, residual.size()),
      branch(context.device, residual.size()),
      scratch(context.device, scratch_floats),
      index_(index),
      context_(context),
      max_tokens_(std::max<int64_t>(1, max_tokens)),
      arrays_(context.device.Allocate(kArrays * max_tokens_ * sizeof(int32_t))) {
  if (context.config.has_moe())
    routed_rows_ =
        context.device.Allocate(max_tokens_ * context.config.moe->router.top_k * sizeof(int32_t));
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
          .ids = Upload(0, batch.tokens),
          .positions = Upload(1, batch.positions),
          .slots = Upload(2, batch.slots),
          .logit_rows = static_cast<int64_t>(batch.logit_rows.size()),
          .logit_row = Upload(3, batch.logit_rows),
          .hidden = batch.hidden,
          .hidden_row = Upload(5, batch.hidden_rows)};
  if (!batch.token_rows.empty()) {
    CHECK_EQ(batch.token_rows.size(), batch.tokens.size());
    CHECK(drawn != nullptr);
    auto* ids = static_cast<int32_t*>(arrays_.get());  // array 0
    context_.device.GatherTokens(ids, Upload(4, batch.token_rows), drawn, tokens);
  }
  kv = &cache;
  sequences->Set(batch.sequences, cache.page_size());

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

uint64_t Pass::RecordingKey(uint64_t size) {
  CHECK_EQ(size >> 32, 0u);
  if (seen_sizes_.insert(size).second) return 0;
  return static_cast<uint64_t>(index_) << 56 | static_cast<uint64_t>(generation_) << 32 | size;
}

const int32_t* Pass::Upload(int64_t array, const std::vector<int32_t>& values) {
  int32_t* to = static_cast<int32_t*>(arrays_.get()) + array * max_tokens_;
  if (!values.empty()) context_.device.CopyIn(to, values.data(), values.size() * sizeof(int32_t));
  return to;
}

}  // namespace switchyard
