// Passes of pipeline stages: several are in flight, and their results come from the last stage.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "engine/rank_engine_impl.h"
#include "engine/sampler/logprobs.h"

namespace switchyard {
namespace {

bool IsNotFinite(const RequestOutput& result) {
  return result.finish == FinishReason::kError && result.error.empty();
}

}  // namespace

StepOutputs RankEngine::Impl::RunStaged(bool runs) {
  if (runs) {
    batch.pass = ++last_pass;
    const std::span<const float> logits = Forward();
    StagedPass& pass = staged.emplace_back();
    if (model.has_logits()) pass.results = Evaluate(logits);
    AdvanceStaged();
    pass.parts = std::exchange(parts, {});
  }
  plan = {};
  if (!staged.empty() && (!runs || std::ssize(staged) >= model.passes_in_flight())) ProcessStaged();
  if (batch.decode_tokens > 0 && runs) LogDecoding();
  return {std::exchange(answers, {})};
}

StepOutputs RankEngine::Impl::Evaluate(std::span<const float> logits) {
  CHECK_EQ(std::ssize(logits), std::ssize(batch.logit_rows) * width);
  const profile::Span span(options.profiler,
                           {.name = "sample", .rows = std::ssize(batch.logit_rows)});
  StepOutputs results;
  size_t begin = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Part& part = parts[i];
    if (part.logit_rows == 0) continue;
    const Rows own{.logits = logits.subspan(begin * width, part.logit_rows * width), .drawn = {}};
    begin += part.logit_rows;
    results.outputs.push_back(ResultOf(*plan[i].sequence, part, own));
  }
  if (!results.outputs.empty()) model.SendResults(EncodeMessage(results));
  return results;
}

RequestOutput RankEngine::Impl::ResultOf(Sequence& sequence, const Part& part, const Rows& own) {
  RequestOutput result{.id = part.id};
  if (!own.finite()) {
    result.finish = FinishReason::kError;
    return result;
  }
  if (sequence.pooled()) {
    const bool mean = sequence.request.pooling == Pooling::kMean;
    const auto rows = mean ? own.logits : own.logits.last(static_cast<size_t>(width));
    result.pooled.assign(rows.begin(), rows.end());
    return result;
  }
  if (sequence.logprobs_pending()) {
    // Earlier chunks may be in flight, so next_logprob may be behind.
    for (int64_t row = part.range.first; row < part.range.end; ++row) {
      if (row + 1 >= sequence.prompt_length) break;
      const auto logits = own.logits.subspan((row - part.range.first) * vocab, vocab);
      result.input_logprobs.push_back(
          LogprobsAt(logits, sequence.tokens[row + 1], sequence.request.logprob));
    }
  }
  if (!part.samples) return result;
  const std::optional<int32_t> token = Draw(sequence, own);
  if (!token) {
    result.finish = FinishReason::kError;
    result.error = WhyNoToken(sequence);
    result.error_kind = ErrorKind::kInvalid;
    return result;
  }
  result.new_tokens.push_back(*token);
  if (sequence.request.logprob.enabled)
    result.output_logprobs.push_back(
        LogprobsAt(own.logits.last(vocab), *token, sequence.request.logprob));
  return result;
}

void RankEngine::Impl::AdvanceStaged() {
  if (!plan.empty()) ++counters.steps;
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *plan[i].sequence;
    const Part& part = parts[i];
    CHECK_EQ(part.drafts, 0u);
    if (!part.decoding) counters.prefill_tokens += part.rows;
    sequence.computed = part.end;
    if (!part.samples) continue;
    sequence.tokens.push_back(Sequence::kUnknown);
    ++sequence.unknown;
    sequence.complete = sequence.output_length() >= sequence.request.sampling.max_new_tokens ||
                        sequence.length() >= max_length;
  }
}

void RankEngine::Impl::ProcessStaged() {
  StagedPass pass = std::move(staged.front());
  staged.pop_front();
  std::vector<RequestOutput>& results = pass.results.outputs;
  const auto logit_rows = [](const Part& part) { return part.logit_rows > 0; };
  if (!model.has_logits() && std::ranges::any_of(pass.parts, logit_rows)) {
    const profile::Span span(options.profiler, {.name = "collect"});
    results = std::get<StepOutputs>(DecodeMessage(model.ReceiveResults())).outputs;
  }
  CHECK_EQ(std::ssize(results), std::ranges::count_if(pass.parts, logit_rows));
  std::map<uint64_t, std::string> router_faults;
  // All stages have the same results, so either all of them call this collective or none.
  if (std::ranges::any_of(results, IsNotFinite)) router_faults = FaultsOf(pass.parts);
  auto next = results.begin();
  for (const Part& part : pass.parts) {
    RequestOutput* const result = logit_rows(part) ? &*next++ : nullptr;
    CHECK(result == nullptr || result->id == part.id);
    const auto entry = table.find(part.id);
    if (entry == table.end()) continue;  // aborted, or failed in an earlier pass
    if (const auto fault = router_faults.find(part.id);
        fault != router_faults.end() && entry->second.router_fault.empty())
      entry->second.router_fault = fault->second;
    ApplyResult(entry->second, part, result);
  }
}

// A retracted sequence waits, with the results of its passes in flight, until it is admitted again.
void RankEngine::Impl::ApplyResult(Sequence& sequence, const Part& part, RequestOutput* result) {
  if (sequence.admissions != part.admission) {
    CHECK(!part.samples);  // an unknown token prevents the admission
    return;
  }
  const bool kept = sequence.computed >= part.end;  // not retracted
  if (result && IsNotFinite(*result)) return FailNotFinite(sequence);
  if (result && sequence.pooled()) AppendPooled(sequence, part.range, result->pooled);
  if (result) {
    sequence.next_logprob += std::ssize(result->input_logprobs);
    std::ranges::move(result->input_logprobs, std::back_inserter(sequence.input_logprobs));
  }
  if (kept) sequence.settled = part.end;
  if (!part.last) return;
  if (kept && !part.decoding)
    cache.Publish(std::span(sequence.tokens).first(part.end), sequence.cache);
  if (sequence.pooled()) return FinishPooled(sequence);
  CHECK(result != nullptr);
  FinishStaged(sequence, part, *result);
}

void RankEngine::Impl::FinishStaged(Sequence& sequence, const Part& part, RequestOutput& result) {
  if (result.finish == FinishReason::kError) return Fail(sequence, result.error, result.error_kind);
  if (part.samples && !AcceptToken(sequence, result.new_tokens.at(0))) return;
  RequestOutput output = NewOutput(sequence);
  output.input_logprobs = std::exchange(sequence.input_logprobs, {});
  if (!part.samples) {  // prompt logprobs only
    output.finish = FinishReason::kLength;
  } else {
    const int32_t token = result.new_tokens.front();
    sequence.tokens[part.end] = token;
    --sequence.unknown;
    output.new_tokens.push_back(token);
    output.output_logprobs = std::move(result.output_logprobs);
    ++counters.decode_tokens;
    CheckFinished(sequence, token, part.end + 1, output);
  }
  const bool finished = output.finish != FinishReason::kNone;
  answers.push_back(std::move(output));
  if (finished) Close(sequence, /*discard=*/false);
}

}  // namespace switchyard
