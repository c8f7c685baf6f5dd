#include "engine/speculative/model_drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "engine/rank_grammars.h"
#include "engine/sampler/random.h"
#include "engine/sampler/softmax.h"

namespace switchyard {
namespace {

constexpr int64_t kCounts = 3;  // counts of a pass: tokens, decode tokens, logit rows

// Length of a group's entry in GatherCounts: the counts of each pass, and one flag. The flag states
// whether the first pass processes saved rows.
int64_t StrideOf(int64_t limit) { return kCounts * limit + 1; }

double ProbabilityOf(std::span<const float> logits, int32_t token) {
  const float max = Max(logits);
  return std::exp(static_cast<double>(logits[token]) - max) / ExpSum(logits, max);
}

}  // namespace

void ModelDrafter::Clear() {
  batch_.tokens.clear();
  batch_.token_rows.clear();
  batch_.positions.clear();
  batch_.slots.clear();
  batch_.sequences.clear();
  batch_.branch_slots.clear();
  batch_.logit_rows.clear();
  batch_.request_ids.clear();
  batch_.hidden_rows.clear();
  batch_.decode_tokens = 0;
}

int32_t ModelDrafter::SlotOf(const Sequence& sequence, int64_t position) const {
  const std::vector<int32_t>& pages = sequence.cache.pages;
  CHECK_LT(position, std::ssize(pages) * page_size_);
  return pages[position / page_size_] * page_size_ + static_cast<int32_t>(position % page_size_);
}

void ModelDrafter::AddRowAt(int32_t slot, int64_t position, int32_t token, int32_t hidden_row) {
  batch_.tokens.push_back(token);
  batch_.positions.push_back(static_cast<int32_t>(position));
  batch_.slots.push_back(slot);
  if (model_.takes_hidden()) batch_.hidden_rows.push_back(hidden_row);
}

void ModelDrafter::EndRows(const Sequence& sequence, int64_t begin, int64_t end) {
  const int64_t rows = end - begin;
  batch_.sequences.push_back({.row_begin = static_cast<int32_t>(batch_.num_tokens() - rows),
                              .rows = static_cast<int32_t>(rows),
                              .kv_len = static_cast<int32_t>(end),
                              .pages = sequence.cache.pages.data()});
  batch_.request_ids.push_back(sequence.request.id);
}

int64_t ModelDrafter::SavedRows(const Sequence& sequence) const {
  return std::ssize(sequence.saved_hidden) / model_.hidden_width();
}

void ModelDrafter::AppendTargetHidden(const DraftPart& part, std::vector<float>& to) {
  const size_t before = to.size();
  const int64_t width = model_.hidden_width();
  to.resize(before + part.rows * width);
  if (part.path.empty()) {
    model_.ReadTargetHidden(part.first_row, part.rows, to.data() + before);
    return;
  }
  for (int64_t i = 0; i < part.rows; ++i)
    model_.ReadTargetHidden(part.RowOf(i), 1, to.data() + before + i * width);
}

void ModelDrafter::Save(const DraftPart& part) {
  Sequence& sequence = *part.sequence;
  const int64_t saved = SavedRows(sequence);
  if (sequence.draft_computed + saved != part.begin || saved + part.rows > max_saved_rows_) {
    sequence.saved_hidden = {};  // later rows cannot be used without these
    return;
  }
  AppendTargetHidden(part, sequence.saved_hidden);
}

bool ModelDrafter::AddMtpRows(const DraftPart& part) {
  Sequence& sequence = *part.sequence;
  const int64_t saved = SavedRows(sequence);
  if (sequence.draft_computed + saved != part.begin) return false;
  const int64_t rows = saved + part.rows;
  if (rows > max_rows_ - batch_.num_tokens()) {
    Save(part);
    return false;
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t position = sequence.draft_computed + i;
    AddRow(sequence, position, sequence.tokens[position + 1],
           static_cast<int32_t>(takes_saved_ ? batch_.num_tokens() : part.RowOf(i)));
  }
  if (takes_saved_) {
    hidden_.insert(hidden_.end(), sequence.saved_hidden.begin(), sequence.saved_hidden.end());
    AppendTargetHidden(part, hidden_);
    sequence.saved_hidden.clear();
  }
  EndRows(sequence, sequence.draft_computed, sequence.draft_computed + rows);
  return true;
}

bool ModelDrafter::AddTokenRows(const DraftPart& part) {
  Sequence& sequence = *part.sequence;
  const int64_t begin = sequence.draft_computed;
  // Includes the row of the last token, which the target computes only in its next step.
  const int64_t end = part.wanted > 0 ? sequence.length() : part.begin + part.rows;
  // Rows that do not fit are computed after a later pass.
  const int64_t rows = std::min(end - begin, max_rows_ - batch_.num_tokens());
  if (rows <= 0) return false;
  for (int64_t position = begin; position < begin + rows; ++position)
    AddRow(sequence, position, sequence.tokens[position], -1);
  EndRows(sequence, begin, begin + rows);
  return begin + rows == end;
}

void ModelDrafter::AddPart(const DraftPart& part, int64_t limit) {
  const int64_t before = batch_.num_tokens();
  const bool complete = model_.takes_hidden() ? AddMtpRows(part) : AddTokenRows(part);
  const int64_t rows = batch_.num_tokens() - before;
  part.sequence->draft_computed += rows;
  if (part.decoding) batch_.decode_tokens += rows;
  const int64_t wanted = std::min(part.wanted, limit);
  if (wanted == 0 || !complete) return;
  batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens() - 1));
  chains_.push_back({.sequence = part.sequence,
                     .wanted = wanted,
                     .row = batch_.only_logit_rows
                                ? static_cast<int32_t>(batch_.logit_rows.size() - 1)
                                : batch_.logit_rows.back()});
  if (trees_.width > 1) StartTree(part, chains_.back());
}

void ModelDrafter::Continue(int64_t drafts, bool launched) {
  Clear();
  for (size_t i = 0; i < chains_.size(); ++i) chains_[i].drawn_row = static_cast<int32_t>(i);
  std::erase_if(chains_, [&](const Chain& chain) { return chain.wanted <= drafts; });
  BranchSpans spans(batch_);
  for (Chain& chain : chains_) {
    if (chain.width > 1) {
      AddLevel(drafts, chain, spans);
      continue;
    }
    const Sequence& sequence = *chain.sequence;
    const int64_t position = sequence.draft_computed - 1 + drafts;
    AddRow(sequence, position, launched ? 0 : sequence.drafts.back(), chain.row);
    if (launched) batch_.token_rows.push_back(chain.drawn_row);
    EndRows(sequence, position, position + 1);
    chain.row = static_cast<int32_t>(batch_.num_tokens() - 1);
    batch_.logit_rows.push_back(chain.row);
  }
  spans.Finish();
  batch_.decode_tokens = batch_.num_tokens();
}

std::vector<int64_t> ModelDrafter::CountsOf(int64_t limit) const {
  std::vector<int64_t> counts = {batch_.num_tokens(), batch_.decode_tokens,
                                 std::ssize(batch_.logit_rows)};
  for (int64_t drafts = 1; drafts < limit; ++drafts) {
    int64_t rows = 0;
    for (const Chain& chain : chains_)
      if (chain.wanted > drafts) rows += chain.width;
    counts.insert(counts.end(), kCounts, rows);
  }
  return counts;
}

int64_t ModelDrafter::Backlog(const Sequence& sequence) const {
  const int64_t missed = sequence.computed - sequence.draft_computed;
  if (!model_.takes_hidden()) return missed;
  if (model_.depths() > 1) {
    const bool saved = sequence.saved_begin <= sequence.draft_computed &&
                       sequence.saved_begin + SavedRows(sequence) == sequence.computed;
    return saved ? missed : 0;
  }
  return SavedRows(sequence) == missed
             ? missed
             : 0;  // some missed rows were not saved: the sequence gets no more drafts
}

bool ModelDrafter::SetGroups(std::span<const int64_t> all, int64_t pass, int64_t limit) {
  batch_.group_tokens.clear();
  batch_.group_decode_tokens.clear();
  batch_.group_logit_rows.clear();
  const int64_t stride = StrideOf(limit);
  if (std::ssize(all) == stride) {
    batch_.group_tokens.push_back(batch_.num_tokens());
    batch_.group_decode_tokens.push_back(batch_.decode_tokens);
    batch_.group_logit_rows.push_back(std::ssize(batch_.logit_rows));
    return batch_.num_tokens() > 0;
  }
  for (size_t group = 0; group < all.size(); group += stride) {
    const auto counts = all.subspan(group + kCounts * pass, kCounts);
    batch_.group_tokens.push_back(counts[0]);
    batch_.group_decode_tokens.push_back(counts[1]);
    batch_.group_logit_rows.push_back(counts[2]);
  }
  return std::ranges::any_of(batch_.group_tokens, [](int64_t tokens) { return tokens > 0; });
}

kernels::RowSampling ModelDrafter::SamplingOf(const Sequence& sequence, int64_t before) {
  const SamplingParams& params = sequence.request.sampling;
  const auto drawn = static_cast<uint64_t>(sequence.output_length() + before);
  return Sampler::RowSamplingOf(params, UniformDraw(*params.seed, drawn));
}

bool ModelDrafter::IsConstrained(const Sequence& sequence) {
  const int64_t length = sequence.output_length() + std::ssize(sequence.drafts);
  return sequence.grammar || Penalties::Needed(sequence.request.sampling, length);
}

ModelDrafter::Guess ModelDrafter::Sample(const Sequence& sequence, std::span<const float> logits,
                                         bool needs_probability) {
  if (!AllFinite(logits)) return {};
  const auto sampling = SamplingOf(sequence, std::ssize(sequence.drafts));
  if (IsConstrained(sequence)) {
    const std::span<const float> row = Constrained(sequence, sequence.drafts, logits);
    const auto token = sampler_.SampleRow(row, sampling);
    return token ? Guess{*token, ProbabilityOf(row, *token)} : Guess{};
  }
  const int32_t index = sampler_.SampleRow(logits, sampling).value_or(0);
  return {model_.TokenOf(index), needs_probability ? ProbabilityOf(logits, index) : 0};
}

std::span<const float> ModelDrafter::Constrained(const Sequence& sequence,
                                                 std::span<const int32_t> drafts,
                                                 std::span<const float> logits) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  const int64_t vocab = model_.vocab_size();
  row_.assign(vocab, kForbidden);
  for (size_t i = 0; i < logits.size(); ++i)
    row_[model_.TokenOf(static_cast<int32_t>(i))] = logits[i];
  mask_.resize(MaskWords(vocab));
  const std::span<const int32_t> output = sequence.output();
  if (sequence.grammar && sequence.grammar->FillMaskAfter(drafts, output, mask_)) {
    for (int64_t id = 0; id < vocab; ++id)
      if (!MaskAllows(mask_, id)) row_[id] = kForbidden;
  }
  output_.assign(output.begin(), output.end());
  output_.insert(output_.end(), drafts.begin(), drafts.end());
  sampler_.Adjust(sequence.request.sampling, sequence.prompt(), output_, row_);
  return row_;
}

void ModelDrafter::SetDraws(int64_t pass) {
  batch_.draws.clear();
  batch_.best_tokens = 0;
  if (!CanDraw()) return;
  for (const Chain& chain : chains_)
    batch_.draws.insert(batch_.draws.end(), chain.logit_rows(), SamplingOf(*chain.sequence, pass));
  if (trees_.width > 1) batch_.best_tokens = static_cast<int32_t>(trees_.width);
}

void ModelDrafter::TakeDrawn(int64_t pass) {
  const std::span<const int32_t> drawn = model_.drawn();
  CHECK_EQ(drawn.size(), batch_.logit_rows.size());
  int64_t first = 0;  // the chain's first logit row
  for (Chain& chain : chains_) {
    if (chain.width > 1) {
      ExpandDrawn(pass, first, chain);
    } else {
      chain.sequence->drafts.push_back(std::max(0, drawn[first]));
    }
    first += chain.logit_rows();
  }
}

void ModelDrafter::Forward(bool may_end, int64_t pass) {
  ++batch_.pass;
  SetDraws(pass);
  const std::span<const float> logits = model_.Forward(batch_);
  if (!batch_.draws.empty()) return TakeDrawn(pass);
  const int64_t width = model_.logit_width();
  CHECK_EQ(std::ssize(logits), std::ssize(batch_.logit_rows) * width);
  int64_t first = 0;  // the chain's first logit row
  for (Chain& chain : chains_) {
    const int64_t rows = chain.logit_rows();
    const std::span<const float> row = logits.subspan(first * width, rows * width);
    first += rows;
    if (chain.width > 1) {
      Expand(pass, row, chain);
      continue;
    }
    std::vector<int32_t>& drafts = chain.sequence->drafts;
    const bool continues = may_end && std::ssize(drafts) + 1 < chain.wanted;
    const Guess guess = Sample(*chain.sequence, row, continues);
    drafts.push_back(guess.token);
    if (!continues) continue;
    chain.probability *= guess.probability;
    if (!(chain.probability >= kImprobable)) chain.wanted = std::ssize(drafts);
  }
}

void ModelDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  if (model_.depths() > 1) return DraftByDepth(parts, limit);
  if (limit == 0) {
    if (!model_.takes_hidden()) return;
    for (const DraftPart& part : parts) Save(part);
    return;
  }
  Clear();
  hidden_.clear();
  chains_.clear();
  takes_saved_ = std::ranges::any_of(
      parts, [](const DraftPart& part) { return !part.sequence->saved_hidden.empty(); });
  for (const DraftPart& part : parts) AddPart(part, limit);
  std::vector<int64_t> mine = CountsOf(limit);
  mine.push_back(hidden_.empty() ? 0 : 1);
  const std::vector<int64_t> all = model_.GatherCounts(mine);
  batch_.hidden = hidden_.empty() ? model_.target_hidden() : model_.PlaceHidden(hidden_);
  batch_.own_hidden = false;
  batch_.may_record = true;
  for (size_t last = mine.size() - 1; last < all.size(); last += mine.size())
    if (all[last] != 0) batch_.may_record = false;
  CanLaunch() ? LaunchPasses(all, limit) : RunPasses(all, limit);
}

void ModelDrafter::RunPasses(std::span<const int64_t> all, int64_t limit) {
  for (int64_t pass = 0; pass < limit; ++pass) {
    if (pass > 0) Continue(pass, /*launched=*/false);
    if (!SetGroups(all, pass, limit)) return;
    Forward(ends_early_ && !model_.draws() && std::ssize(all) == StrideOf(limit), pass);
    TakeOwnHidden();
  }
}

bool ModelDrafter::CanDraw() const {
  return model_.draws() && std::ranges::none_of(chains_, [](const Chain& chain) {
           return IsConstrained(*chain.sequence);
         });
}

// A sequence without constraints has none after its drafts either: Penalties::Needed only becomes
// false with the length. The host builds the levels of a tree, so it needs the tokens of the level
// before.
bool ModelDrafter::CanLaunch() const { return model_.launches() && trees_.width == 1 && CanDraw(); }

void ModelDrafter::LaunchPasses(std::span<const int64_t> all, int64_t limit) {
  constexpr size_t kMostLaunched = 2;
  for (int64_t pass = 0; pass < limit; ++pass) {
    if (pass > 0) Continue(pass, /*launched=*/true);
    if (!SetGroups(all, pass, limit)) break;
    ++batch_.pass;
    SetDraws(pass);
    std::vector<Sequence*>& sequences = launched_.emplace_back();
    for (const Chain& chain : chains_) sequences.push_back(chain.sequence);
    model_.Launch(batch_);
    if (launched_.size() == kMostLaunched) CollectPass();
    TakeOwnHidden();
  }
  while (!launched_.empty()) CollectPass();
}

void ModelDrafter::CollectPass() {
  const std::span<const int32_t> drawn = model_.Collect();
  const std::vector<Sequence*>& sequences = launched_.front();
  CHECK_EQ(drawn.size(), sequences.size());
  for (size_t i = 0; i < drawn.size(); ++i) sequences[i]->drafts.push_back(std::max(0, drawn[i]));
  launched_.pop_front();
}

void ModelDrafter::TakeOwnHidden() {
  batch_.hidden = model_.hidden();
  batch_.own_hidden = true;
  batch_.may_record = true;
}

}  // namespace switchyard
