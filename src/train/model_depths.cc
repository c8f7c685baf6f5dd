// Rows of a micro-batch at each prediction depth, and the input projection of MTP modules.
#include <algorithm>
#include <span>
#include <string>

#include "core/check.h"
#include "core/error.h"
#include "train/math/workspace.h"
#include "train/model.h"

namespace switchyard::train {
namespace {

void CheckTokens(std::span<const int32_t> ids, int32_t lowest, int64_t vocab,
                 std::string_view what) {
  for (size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < lowest || ids[t] >= vocab) {
      throw Invalid("{} {} of a batch is {}, want less than the vocabulary size {}", what, t,
                    ids[t], vocab);
    }
  }
}

void CheckExperts(const Batch& batch, const ModelConfig& config) {
  if (batch.experts.empty()) return;
  const int64_t k = config.has_moe() ? config.moe->router.top_k : 0;
  const int64_t slots = batch.size() * config.num_layers();
  if (std::ssize(batch.experts) != slots * k) {
    throw Invalid("a batch has {} given experts, want {} ({} tokens, {} layers, top-{})",
                  batch.experts.size(), slots * k, batch.size(), config.num_layers(), k);
  }
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t token = i / config.num_layers(), layer = i % config.num_layers();
    const std::string fault =
        FaultOfGivenExperts(std::span(batch.experts).subspan(i * k, k),
                            config.layers[layer].moe ? config.moe->router.num_experts : 0);
    if (!fault.empty()) throw Invalid("token {} of a batch, layer {}: {}", token, layer, fault);
  }
}

void CheckBatch(const Batch& batch, const ModelConfig& config) {
  if (batch.targets.size() != batch.tokens.size()) {
    throw Invalid("a batch has {} tokens and {} targets", batch.tokens.size(),
                  batch.targets.size());
  }
  const std::vector<int32_t>& begins = batch.begins;
  const bool ends =
      begins.empty() ? batch.size() == 0 : begins.front() == 0 && begins.back() == batch.size();
  if (!ends) throw Invalid("a batch's sequences do not cover its {} tokens", batch.size());
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t length = begins[s + 1] - begins[s];
    if (length < 1 || length > config.max_position) {
      throw Invalid("sequence {} of a batch has {} tokens, want 1 to max_position_embeddings {}", s,
                    length, config.max_position);
    }
  }
  CheckTokens(batch.tokens, 0, config.vocab_size, "token");
  CheckTokens(batch.targets, Batch::kIgnored, config.vocab_size, "target");
  CheckExperts(batch, config);
}

// Fills the rows of an MTP module. They are the rows of `before` except the last row of each
// sequence, which has no next token. Each row gets the token and the target of the next row.
template <typename T>
void ShiftByOneToken(const DepthState<T>& before, DepthState<T>* d) {
  d->source.clear();
  d->tokens.clear();
  d->targets.clear();
  std::vector<int32_t> begins = {0};
  for (int64_t s = 0; s < before.rows.sequences(); ++s) {
    for (int32_t t = before.rows.begins[s]; t + 1 < before.rows.begins[s + 1]; ++t) {
      d->source.push_back(t);
      d->tokens.push_back(before.tokens[t + 1]);
      d->targets.push_back(before.targets[t + 1]);
    }
    if (static_cast<int32_t>(d->source.size()) > begins.back())
      begins.push_back(static_cast<int32_t>(d->source.size()));
  }
  d->rows = RowLayout::Of(std::move(begins));
}

}  // namespace

template <typename T>
void Model<T>::Begin(const Batch& batch, const StepSize& step, Pass<T>* pass) {
  CheckBatch(batch, config_);
  pass->step = step;
  pass->losses = {};
  pass->depths.resize(1 + mtp_.size());
  pass->layers.resize(layers_.size());
  DepthState<T>& main = pass->depths[0];
  main.tokens = batch.tokens;
  main.targets = batch.targets;
  main.experts = batch.experts;
  main.rows = RowLayout::Of(batch.begins);
  if (!stage_.first) main.stream.resize(MyRows(main) * hidden_);
  for (size_t d = 1; d < pass->depths.size(); ++d)
    ShiftByOneToken(pass->depths[d - 1], &pass->depths[d]);
}

template <typename T>
void Model<T>::GiveExperts(int64_t layer, Pass<T>* pass) {
  std::vector<int32_t>& given = pass->layers[layer].moe.router.given;
  given.clear();
  const DepthState<T>& d = pass->depths[DepthOf(layer)];
  if (d.experts.empty()) return;
  const int64_t k = config_.moe->router.top_k, width = config_.num_layers() * k;
  const Range mine = tp_.Mine(d.rows.rows());
  for (int64_t t = mine.begin; t < mine.end; ++t) {
    const auto at = d.experts.begin() + t * width + (stage_.first_layer + layer) * k;
    given.insert(given.end(), at, at + k);
  }
}

// Looks up the embedding of each row's token, on the rank that holds the token's part of the
// vocabulary.
template <typename T>
void Model<T>::EmbedRows(const DepthState<T>& d, T* out) {
  if (tp_.alone()) return Embed<T>(d.tokens, embedding_->value.data(), hidden_, out, pool_);
  const int64_t n = d.rows.rows(), first = embedding_->slice.begin, count = embedding_->shape[0];
  PartialRows<T> partial(tp_, out, n, hidden_);
  for (int64_t t = 0; t < n; ++t) {
    const int64_t id = d.tokens[t] - first;
    T* row = partial.data() + t * hidden_;
    if (id < 0 || id >= count) {
      std::fill_n(row, hidden_, T{0});
    } else {
      std::copy_n(embedding_->value.data() + id * hidden_, hidden_, row);
    }
  }
  partial.Scatter();
}

template <typename T>
void Model<T>::EmbedRowsBackward(const DepthState<T>& d, const T* dout) {
  const GatheredRows<T> all(tp_, dout, d.rows.rows(), hidden_);
  if (tp_.alone())
    return EmbedGradient<T>(d.tokens, dout, hidden_, embedding_->gradient.data(), pool_);
  const int64_t n = d.rows.rows(), first = embedding_->slice.begin, count = embedding_->shape[0];
  for (int64_t t = 0; t < n; ++t) {
    const int64_t id = d.tokens[t] - first;
    if (id < 0 || id >= count) continue;
    T* row = embedding_->gradient.data() + id * hidden_;
    for (int64_t c = 0; c < hidden_; ++c) row[c] += all.data()[t * hidden_ + c];
  }
}

// joined = [norm(embedding of the token), norm(final hidden state of the previous depth)]. This is
// the order in DeepSeek's checkpoints; the paper has the reverse order. The hidden state is taken
// after the final norm, as in vLLM's inference code and Megatron's training code.
template <typename T>
void Model<T>::Join(int64_t depth, Pass<T>* pass) {
  const DepthState<T>& before = pass->depths[depth - 1];
  DepthState<T>& d = pass->depths[depth];
  const MtpModule& module = mtp_[depth - 1];
  const int64_t m = MyRows(d);
  for (auto* v : {&d.embedded, &d.previous}) v->resize(m * hidden_);
  d.joined.resize(2 * m * hidden_);
  EmbedRows(d, d.embedded.data());
  const GatheredRows<T> final(tp_, before.final.data(), before.rows.rows(), hidden_);
  Embed<T>(MySources(d), final.data(), hidden_, d.previous.data(), pool_);
  ScratchBuffer<T> normed(m * hidden_);
  const auto put = [&](const std::vector<T>& x, const Parameter<T>* norm, int64_t column) {
    RmsNorm(Norm(m), x.data(), norm->value.data(), normed.data(), pool_);
    for (int64_t t = 0; t < m; ++t) {
      std::copy_n(normed.data() + t * hidden_, hidden_, d.joined.data() + t * 2 * hidden_ + column);
    }
  };
  put(d.embedded, module.embedding_norm, 0);
  put(d.previous, module.hidden_norm, hidden_);
  const Projection<T> projection = module.projection.Forward(d.joined.data(), m, d.stream.data());
  Project<T>({&projection, 1}, pool_);
}

template <typename T>
void Model<T>::JoinBackward(int64_t depth, Pass<T>* pass) {
  DepthState<T>& before = pass->depths[depth - 1];
  DepthState<T>& d = pass->depths[depth];
  const MtpModule& module = mtp_[depth - 1];
  const int64_t m = MyRows(d);
  ScratchBuffer<T> djoined(2 * m * hidden_), dnormed(m * hidden_), dx(m * hidden_);
  const LinearUse<T> uses[] = {{&module.projection, d.stream.data()}};
  BackwardAll<T>(uses, d.joined.data(), m, djoined.data(), false, pool_);
  const auto take = [&](const std::vector<T>& x, Parameter<T>* norm, int64_t column) {
    for (int64_t t = 0; t < m; ++t) {
      std::copy_n(djoined.data() + t * 2 * hidden_ + column, hidden_, dnormed.data() + t * hidden_);
    }
    RmsNormGradient(Norm(m), x.data(), norm->value.data(), dnormed.data(), dx.data(), false,
                    norm->gradient_data(), pool_);
  };
  take(d.embedded, module.embedding_norm, 0);
  if (!embedding_->gradient.empty()) EmbedRowsBackward(d, dx.data());
  take(d.previous, module.hidden_norm, hidden_);
  if (IsFrozen(depth - 1)) return;
  if (tp_.alone())
    return EmbedGradient<T>(d.source, dx.data(), hidden_, before.dfinal.data(), pool_);
  // The rows of the previous depth that this rank needs may be on another rank.
  const int64_t n = before.rows.rows();
  ScratchBuffer<T> sums(MyRows(before) * hidden_);
  PartialRows<T> partial(tp_, sums.data(), n, hidden_);
  std::fill_n(partial.data(), n * hidden_, T{0});
  EmbedGradient<T>(MySources(d), dx.data(), hidden_, partial.data(), pool_);
  partial.Scatter();
  Add(before.dfinal.data(), sums.data(), MyRows(before) * hidden_, pool_);
}

template void Model<float>::Begin(const Batch&, const StepSize&, Pass<float>*);
template void Model<float>::GiveExperts(int64_t, Pass<float>*);
template void Model<float>::EmbedRows(const DepthState<float>&, float*);
template void Model<float>::EmbedRowsBackward(const DepthState<float>&, const float*);
template void Model<float>::Join(int64_t, Pass<float>*);
template void Model<float>::JoinBackward(int64_t, Pass<float>*);
template void Model<double>::Begin(const Batch&, const StepSize&, Pass<double>*);
template void Model<double>::GiveExperts(int64_t, Pass<double>*);
template void Model<double>::EmbedRows(const DepthState<double>&, double*);
template void Model<double>::EmbedRowsBackward(const DepthState<double>&, const double*);
template void Model<double>::Join(int64_t, Pass<double>*);
template void Model<double>::JoinBackward(int64_t, Pass<double>*);

}  // namespace switchyard::train
