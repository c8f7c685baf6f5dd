// What follows a pass: sequences advance, tokens are sampled, finished requests end.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/rank_engine_impl.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/softmax.h"
#include "grammar/compiled_grammar.h"

namespace switchyard {

bool RankEngine::Impl::Rows::finite() const {
  return AllFinite(logits) && std::ranges::all_of(drawn, [](int32_t id) { return id >= 0; });
}

void RankEngine::Impl::AdvanceLaunched() {
  if (!plan.empty()) ++counters.steps;
  int32_t row = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *plan[i].sequence;
    const Part& part = parts[i];
    if (!part.decoding) counters.prefill_tokens += part.rows;
    sequence.computed = part.end;
    if (cache.has_states()) cache.AdvanceStatesAhead(part.end, part.decoding, sequence.cache);
    row += static_cast<int32_t>(part.logit_rows);
    if (part.logit_rows == 0) continue;
    sequence.tokens.push_back(Sequence::kUnknown);
    ++sequence.unknown;
    sequence.unknown_row = row - 1;
    sequence.complete = sequence.output_length() >= sequence.request.sampling.max_new_tokens ||
                        sequence.length() >= max_length;
  }
  launched = {batch.pass, std::exchange(parts, {})};
  reverts_states = true;
}

void RankEngine::Impl::RevertLaunched() {
  CHECK(plan.empty());  // no later pass is planned
  reverts_states = !cache.has_states();
  const LaunchedPass pass = *std::exchange(launched, std::nullopt);
  if (!pass.parts.empty()) --counters.steps;
  for (const Part& part : pass.parts) {
    if (!part.decoding) counters.prefill_tokens -= part.rows;
    const auto entry = table.find(part.id);
    if (entry == table.end()) continue;  // aborted
    Sequence& sequence = entry->second;
    CHECK_EQ(sequence.computed, part.end);
    sequence.computed = part.end - part.rows;
    if (cache.has_states()) cache.RevertStates(sequence.computed, sequence.cache);
    if (part.logit_rows == 0) continue;
    sequence.tokens.pop_back();
    --sequence.unknown;
    sequence.complete = false;
  }
}

void RankEngine::Impl::LogDecoding() {
  if (options.decode_log_interval <= 0 || ++decode_steps % options.decode_log_interval != 0) return;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_log).count();
  const EngineStats stats = Stats();
  LOG_INFO("decode step {}: {} requests run, {} wait, {} of {} pages in use, {:.1f} tokens/s",
           decode_steps, stats.running, stats.waiting,
           stats.total_pages - stats.free_pages - stats.cached_pages, stats.total_pages,
           static_cast<double>(stats.decode_tokens - logged_tokens) / std::max(seconds, 1e-9));
  last_log = now;
  logged_tokens = stats.decode_tokens;
}

void RankEngine::Impl::FillMasks(std::span<const Part> pass) {
  const profile::Span span(options.profiler, {.name = "masks"});
  const auto words = static_cast<size_t>(MaskWords(vocab));
  masks.rows.assign(batch.logit_rows.size(), -1);
  masks.words.clear();
  size_t row = 0;
  for (const Part& part : pass) {
    row += part.logit_rows;
    if (part.logit_rows == 0) continue;
    const auto entry = table.find(part.id);
    if (entry == table.end() || !entry->second.grammar) continue;
    const size_t begin = masks.words.size();
    masks.words.resize(begin + words);
    if (entry->second.grammar->FillMask(std::span(masks.words).subspan(begin))) {
      masks.rows[row - 1] = static_cast<int32_t>(begin / words);
    } else {
      masks.words.resize(begin);
    }
  }
}

void RankEngine::Impl::ProcessLaunched(std::span<const Part> pass) {
  std::span<const int32_t> drawn;
  {
    const profile::Span span(options.profiler, {.name = "collect"});
    drawn = model.Collect();
  }
  std::map<uint64_t, std::string> router_faults;
  // All ranks of the group have the same tokens, so either all of them call this collective or
  // none.
  if (std::ranges::any_of(drawn, [](int32_t token) { return token < 0; }))
    router_faults = FaultsOf(pass);
  size_t row = 0;
  for (const Part& part : pass) {
    row += part.logit_rows;
    const auto entry = table.find(part.id);
    if (entry == table.end()) continue;  // aborted, or ended with its previous token
    Sequence& sequence = entry->second;
    if (const auto fault = router_faults.find(part.id);
        fault != router_faults.end() && sequence.router_fault.empty())
      sequence.router_fault = fault->second;
    if (part.logit_rows > 0) {
      ProcessDrawn(sequence, part, drawn[row - 1]);
    } else if (sequence.admissions == part.admission && sequence.computed >= part.end) {
      Settle(sequence, part.end);  // it was not retracted
    }
  }
}

void RankEngine::Impl::Settle(Sequence& sequence, int64_t end) {
  sequence.settled = end;
  if (cache.has_states()) cache.SettleStates(end, sequence.cache);
  cache.Record(sequence.settled_tokens(), sequence.request.id, sequence.cache);
}

std::map<uint64_t, std::string> RankEngine::Impl::FaultsOf(std::span<const Part> pass) {
  ForwardBatch alive;
  for (const Part& part : pass) {
    const auto entry = table.find(part.id);
    if (entry == table.end() ||
        entry->second.computed < part.end - static_cast<int64_t>(part.drafts))
      continue;
    alive.sequences.push_back({.rows = static_cast<int32_t>(part.rows),
                               .kv_len = static_cast<int32_t>(part.end),
                               .pages = entry->second.cache.pages.data()});
    alive.request_ids.push_back(part.id);
  }
  std::map<uint64_t, std::string> by_id;
  const std::vector<std::string> found = model.RouterFaults(alive);
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].empty()) by_id[alive.request_ids[i]] = found[i];
  return by_id;
}

void RankEngine::Impl::ProcessDrawn(Sequence& sequence, const Part& part, int32_t token) {
  if (token < 0) return FailNotFinite(sequence);
  if (!AcceptToken(sequence, token)) return;
  sequence.tokens[part.end] = token;
  --sequence.unknown;
  if (sequence.computed >= part.end) {
    Settle(sequence, part.end);
    if (!part.decoding) cache.Publish(std::span(sequence.tokens).first(part.end), sequence.cache);
  }
  RequestOutput output = NewOutput(sequence);
  output.new_tokens.push_back(token);
  ++counters.decode_tokens;
  CheckFinished(sequence, token, part.end + 1, output);
  const bool finished = output.finish != FinishReason::kNone;
  answers.push_back(std::move(output));
  if (!finished) return;
  sequence.Truncate(part.end + 1);
  sequence.computed = std::min(sequence.computed, part.end);
  Close(sequence, /*discard=*/false);
}

void RankEngine::Impl::ProcessPass(Rows all) {
  if (batch.draws.empty()) {
    all.drawn = {};
    CHECK_EQ(std::ssize(all.logits), std::ssize(batch.logit_rows) * width);
  } else {
    CHECK_EQ(all.drawn.size(), batch.logit_rows.size());
  }
  if (!plan.empty()) ++counters.steps;
  // All ranks of the group have the same logits, so either all of them call this collective or
  // none.
  faults.clear();
  if (!all.finite()) faults = model.RouterFaults(batch);
  size_t begin = 0, span = 0;
  int64_t first_row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    Rows own;
    if (batch.draws.empty()) {
      own.logits = all.logits.subspan(begin * width, part.logit_rows * width);
    } else {
      own.drawn = all.drawn.subspan(begin, part.logit_rows);
    }
    begin += part.logit_rows;
    first_row += part.rows;
    std::string fault;  // of the first span of the part that has one
    for (; span < batch.sequences.size() && batch.sequences[span].row_begin < first_row; ++span)
      if (span < faults.size() && fault.empty()) fault = faults[span];
    const auto entry = table.find(part.id);
    if (entry == table.end()) continue;  // ended with the token of the previous launched pass
    Sequence& sequence = entry->second;
    if (part.drafts == 0) AppendRoutedExperts(sequence, part, first_row - part.rows);
    if (!fault.empty() && sequence.router_fault.empty()) sequence.router_fault = fault;
    if (part.drafts == 0) {
      Finish(sequence, part, own);  // may end the sequence
    } else {
      Verify(sequence, part, own, first_row - part.rows);
    }
  }
}

void RankEngine::Impl::AppendRoutedExperts(Sequence& sequence, const Part& part, int64_t first_row,
                                           std::span<const int32_t> path) {
  if (!sequence.routed_experts_pending() || part.end <= sequence.next_routed) return;
  const int64_t width = model.routed_width(), first = sequence.next_routed - sequence.computed;
  CHECK_GE(first, 0);  // guaranteed by max_reusable
  const auto append = [&](int64_t row, int64_t count) {
    const auto rows = model.routed_experts().subspan((first_row + row) * width, count * width);
    sequence.routed_experts.insert(sequence.routed_experts.end(), rows.begin(), rows.end());
  };
  if (path.empty()) {
    append(first, part.rows - first);
  } else {
    for (int64_t i = first; i < part.rows; ++i) append(path[i], 1);
  }
  sequence.next_routed = part.end;
}

bool RankEngine::Impl::AcceptToken(Sequence& sequence, int32_t token) {
  if (!sequence.grammar) return true;
  if (model.has_logits()) {
    sequence.grammar->Accept(token);
  } else {
    masks.words.resize(MaskWords(vocab));
    sequence.grammar->Follow(token, masks.words);
  }
  if (sequence.grammar->failure().empty()) return true;
  Fail(sequence, sequence.grammar->failure(), ErrorKind::kInvalid);
  return false;
}

std::string RankEngine::Impl::NotFiniteError(const Sequence& sequence) {
  return sequence.router_fault.empty()
             ? "the model returned logits that are not finite (NaN or infinity)"
             : sequence.router_fault;
}

void RankEngine::Impl::FailNotFinite(Sequence& sequence) {
  Fail(sequence, NotFiniteError(sequence));
}

void RankEngine::Impl::Finish(Sequence& sequence, const Part& part, const Rows& own) {
  const Range rows = sequence.LogitRows(part.rows);
  if (!part.decoding) counters.prefill_tokens += part.rows;
  if (!own.finite()) return FailNotFinite(sequence);
  if (sequence.pooled()) {
    AddPooled(sequence, own.logits);
    sequence.next_pooled = std::max(sequence.next_pooled, rows.end);
  } else {
    AppendInputLogprobs(sequence, rows, own.logits);
  }
  sequence.computed = sequence.settled = part.end;
  if (cache.has_states()) cache.AdvanceStates(part.end, sequence.cache);
  cache.Record(sequence.settled_tokens(), sequence.request.id, sequence.cache);
  if (sequence.pending() > 0) {
    if (sequence.request.kv == KvRole::kExport)
      answers.push_back(PagesOutput(sequence, Export(sequence)));
    return;
  }
  if (!part.decoding) cache.Publish(sequence.settled_tokens(), sequence.cache);
  if (sequence.pooled()) return FinishPooled(sequence, PooledOf(sequence));
  if (sequence.first_sent) {  // it had lost its pages
    answers.push_back(PagesOutput(sequence, Export(sequence)));
    return scheduler.Hold(&sequence);
  }
  SampleToken(sequence, own);
}

void RankEngine::Impl::AddPooled(Sequence& sequence, std::span<const float> own) const {
  if (own.empty()) return;
  std::vector<double>& sum = sequence.pooled_sum;
  if (sequence.request.pooling == Pooling::kLast) {
    sum.assign(own.end() - width, own.end());
    return;
  }
  // Adds rows in the order of positions, so the sum does not depend on the chunks.
  sum.resize(width);
  for (int64_t row = 0; row < std::ssize(own) / width; ++row)
    for (int64_t i = 0; i < width; ++i) sum[i] += own[row * width + i];
}

std::vector<float> RankEngine::Impl::PooledOf(const Sequence& sequence) const {
  const bool mean = sequence.request.pooling == Pooling::kMean;
  const double count = mean ? static_cast<double>(sequence.prompt_length) : 1.0;
  std::vector<float> pooled;
  for (const double sum : sequence.pooled_sum) pooled.push_back(static_cast<float>(sum / count));
  return pooled;
}

void RankEngine::Impl::FinishPooled(Sequence& sequence, std::vector<float> pooled) {
  RequestOutput output = NewOutput(sequence);
  output.pooled = std::move(pooled);
  output.finish = FinishReason::kLength;
  answers.push_back(std::move(output));
  Close(sequence, /*discard=*/false);
}

void RankEngine::Impl::AppendLogprobs(const Sequence& sequence, std::span<const float> logits,
                                      int32_t token, std::vector<PositionLogprobs>& to) const {
  if (sequence.request.logprob.enabled && options.log_probabilities)
    to.push_back(LogprobsAt(logits.last(vocab), token, sequence.request.logprob));
}

void RankEngine::Impl::AppendInputLogprobs(Sequence& sequence, Range rows,
                                           std::span<const float> logits) {
  for (int64_t row = rows.begin; row < rows.end && sequence.logprobs_pending(); ++row) {
    const int64_t position = sequence.next_logprob++;
    CHECK_EQ(position, row + 1);
    AppendLogprobs(sequence, logits.subspan((row - rows.begin) * vocab, vocab),
                   sequence.tokens[position], sequence.input_logprobs);
  }
}

std::string RankEngine::Impl::WhyNoToken(const Sequence& sequence) {
  if (!sequence.grammar)
    return "the request's banned tokens and minimum length leave no token to sample";
  if (!sequence.grammar->failure().empty()) return sequence.grammar->failure();
  return "the request's banned tokens, minimum length and grammar leave no token to sample";
}

std::optional<int32_t> RankEngine::Impl::Draw(Sequence& sequence, const Rows& own) {
  if (!own.drawn.empty()) return own.drawn.back();
  const SamplingParams& params = sequence.request.sampling;
  std::span<const uint32_t> mask;
  if (sequence.grammar) {
    masks.words.resize(MaskWords(vocab));
    if (!sequence.grammar->FillMask(masks.words)) return std::nullopt;
    mask = masks.words;
  }
  return sampler.Sample(own.logits.last(vocab), params, sequence.prompt(), sequence.output(),
                        *params.seed, mask);
}

void RankEngine::Impl::SampleToken(Sequence& sequence, const Rows& own) {
  const SamplingParams& params = sequence.request.sampling;
  RequestOutput output = NewOutput(sequence);
  output.input_logprobs = std::exchange(sequence.input_logprobs, {});
  if (params.max_new_tokens == 0) {  // prompt logprobs only
    output.finish = FinishReason::kLength;
  } else {
    const std::optional<int32_t> token = Draw(sequence, own);
    if (!token) return Fail(sequence, WhyNoToken(sequence), ErrorKind::kInvalid);
    if (!AcceptToken(sequence, *token)) return;
    AppendLogprobs(sequence, own.logits, *token, output.output_logprobs);
    output.new_tokens.push_back(*token);
    sequence.tokens.push_back(*token);
    ++counters.decode_tokens;
    CheckFinished(sequence, *token, sequence.length(), output);
  }
  const bool finished = output.finish != FinishReason::kNone;
  const bool held = !finished && sequence.request.kv == KvRole::kExport;
  if (held) output.kv = Export(sequence);
  answers.push_back(std::move(output));
  if (held) scheduler.Hold(&sequence);
  if (finished) Close(sequence, /*discard=*/false);
}

void RankEngine::Impl::CheckFinished(const Sequence& sequence, int32_t token, int64_t length,
                                     RequestOutput& output) const {
  const SamplingParams& params = sequence.request.sampling;
  const auto holds = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const bool ended = sequence.grammar && sequence.grammar->ended();
  if (ended || holds(params.stop_token_ids) ||
      (!params.ignore_eos && holds(options.eos_token_ids))) {
    output.finish = FinishReason::kStop;
    output.matched = token;
  } else if (length - sequence.prompt_length >= params.max_new_tokens || length >= max_length) {
    output.finish = FinishReason::kLength;
  }
}

}  // namespace switchyard
