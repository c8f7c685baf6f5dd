// Drafts of several MTP layers, each of which makes one draft of a step.
#include <algorithm>

#include "core/check.h"
#include "engine/speculative/model_drafter.h"

namespace switchyard {

bool ModelDrafter::JoinsSaved(const DraftPart& part) const {
  const Sequence& sequence = *part.sequence;
  return !sequence.saved_hidden.empty() && sequence.saved_begin <= sequence.draft_computed &&
         sequence.saved_begin + SavedRows(sequence) == part.begin;
}

void ModelDrafter::SaveByDepth(const DraftPart& part) {
  Sequence& sequence = *part.sequence;
  if (!JoinsSaved(part)) {
    sequence.saved_hidden.clear();
    sequence.saved_begin = part.begin;
  }
  const bool continues = sequence.saved_begin <= sequence.draft_computed;
  if (!continues || SavedRows(sequence) + part.rows > max_saved_rows_) {
    sequence.saved_hidden = {};  // later rows cannot be used without these
    return;
  }
  AppendTargetHidden(part, sequence.saved_hidden);
}

void ModelDrafter::DropComputed(Sequence& sequence) {
  const int64_t rows =
      std::clamp<int64_t>(sequence.draft_computed - sequence.saved_begin, 0, SavedRows(sequence));
  const auto first = sequence.saved_hidden.begin();
  sequence.saved_hidden.erase(first, first + rows * model_.hidden_width());
  sequence.saved_begin += rows;
}

void ModelDrafter::AddDepthPart(const DraftPart& part, int64_t limit) {
  Sequence& sequence = *part.sequence;
  const bool joins = JoinsSaved(part);
  DepthRows rows{.sequence = &sequence,
                 .hidden_begin = joins ? sequence.saved_begin : part.begin,
                 .begin = sequence.draft_computed,
                 .end = part.begin + part.rows,
                 .decoding = part.decoding,
                 .wanted = std::min(part.wanted, limit)};
  if (rows.begin < rows.hidden_begin) return;  // some rows were not saved
  const int64_t width = model_.hidden_width(), count = rows.end - rows.hidden_begin;
  rows.hidden_row = std::ssize(hidden_) / width;
  // A pass has at most all rows of hidden_.
  if (rows.hidden_row + count > max_rows_) return SaveByDepth(part);
  if (joins)
    hidden_.insert(hidden_.end(), sequence.saved_hidden.begin(), sequence.saved_hidden.end());
  AppendTargetHidden(part, hidden_);
  sequence.draft_computed = rows.end;
  // In the last layer, rows before this one have their tokens. Others are computed again.
  const int64_t settled = std::ssize(sequence.tokens) - model_.depths();
  const int64_t kept =
      std::clamp<int64_t>(rows.end - settled, 0, std::min(model_.depths() - 1, count));
  sequence.saved_hidden.assign(hidden_.end() - kept * width, hidden_.end());
  sequence.saved_begin = rows.end - kept;
  depth_rows_.push_back(rows);
}

void ModelDrafter::AddDepth(int64_t depth) {
  Clear();
  depth_drafts_.clear();
  for (size_t i = 0; i < depth_rows_.size(); ++i) {
    const DepthRows& rows = depth_rows_[i];
    const Sequence& sequence = *rows.sequence;
    const int64_t tokens = std::ssize(sequence.tokens);
    // The rows whose token is sampled or drafted.
    const int64_t known = tokens + std::ssize(sequence.drafts) - 1 - depth;
    const int64_t begin = std::max(rows.hidden_begin, rows.begin - depth);
    const int64_t end = std::min(rows.end, known);
    if (begin >= end) continue;
    for (int64_t position = begin; position < end; ++position) {
      const int64_t next = position + 1 + depth;
      AddRow(sequence, position,
             next < tokens ? sequence.tokens[next] : sequence.drafts[next - tokens],
             static_cast<int32_t>(rows.hidden_row + position - rows.hidden_begin));
    }
    EndRows(sequence, begin, end);
    if (rows.decoding) batch_.decode_tokens += end - begin;
    if (rows.wanted <= depth || end < rows.end) continue;
    batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens() - 1));
    depth_drafts_.push_back(i);
  }
}

void ModelDrafter::ForwardDepth(int64_t depth, bool may_end) {
  ++batch_.pass;
  batch_.depth = static_cast<int32_t>(depth);
  const std::span<const float> logits = model_.Forward(batch_);
  const int64_t width = model_.logit_width();
  CHECK_EQ(std::ssize(logits), std::ssize(batch_.logit_rows) * width);
  for (size_t i = 0; i < depth_drafts_.size(); ++i) {
    DepthRows& rows = depth_rows_[depth_drafts_[i]];
    std::vector<int32_t>& drafts = rows.sequence->drafts;
    const bool continues = may_end && depth + 1 < rows.wanted;
    const Guess guess =
        Sample(*rows.sequence, logits.subspan(static_cast<int64_t>(i) * width, width), continues);
    drafts.push_back(guess.token);
    if (!continues) continue;
    rows.probability *= guess.probability;
    if (!(rows.probability >= kImprobable)) rows.wanted = depth + 1;
  }
}

void ModelDrafter::DraftByDepth(std::span<const DraftPart> parts, int64_t limit) {
  CHECK(model_.takes_hidden() && !model_.draws() && trees_.width == 1);
  if (limit == 0) {
    for (const DraftPart& part : parts) SaveByDepth(part);
    return;
  }
  hidden_.clear();
  depth_rows_.clear();
  int64_t rows = 0;
  for (const DraftPart& part : parts) rows += SavedRows(*part.sequence) + part.rows;
  for (const DraftPart& part : parts) {
    if (rows > max_rows_) DropComputed(*part.sequence);
    AddDepthPart(part, limit);
  }
  batch_.own_hidden = batch_.may_record = false;
  batch_.draws.clear();
  // All layers run, whatever the number of drafts is: the rows of later steps read their keys.
  for (int64_t depth = 0; depth < model_.depths(); ++depth) {
    AddDepth(depth);
    const int64_t counts[] = {batch_.num_tokens(), batch_.decode_tokens,
                              std::ssize(batch_.logit_rows), 0};
    const std::vector<int64_t> all = model_.GatherCounts(counts);
    batch_.hidden = model_.PlaceHidden(hidden_);
    if (SetGroups(all, 0, 1)) ForwardDepth(depth, ends_early_ && all.size() == std::size(counts));
  }
}

}  // namespace switchyard
