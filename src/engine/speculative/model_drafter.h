// Drafts from a model: the target's MTP layer, an EAGLE head, or a separate small model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "engine/sampler/sampler.h"
#include "engine/speculative/draft_tree.h"
#include "engine/speculative/drafter.h"
#include "kernels/best_tokens.h"

namespace switchyard {

// The model interface of ModelDrafter; tests substitute a fake. All ranks of the world call it
// together.
class DraftForward {
 public:
  virtual ~DraftForward() = default;
  // Logits [batch.logit_rows, logit_width], valid until the next call. Empty if the batch has
  // `draws`, which needs draws().
  virtual std::span<const float> Forward(const ForwardBatch& batch) = 0;
  // Whether the model samples tokens itself, on its device. drawn(): the tokens sampled for the
  // last batch with `draws`, [logit rows], already converted by TokenOf; −1 where a logit is not
  // finite.
  virtual bool draws() const { return false; }
  virtual std::span<const int32_t> drawn() const { return {}; }
  // The most probable tokens of each logit row of the last batch with ForwardBatch::best_tokens,
  // already converted by TokenOf. A row's sum is 0 where a logit is not finite.
  virtual kernels::BestTokenRows best() const { return {}; }
  // Whether passes can be launched before the tokens of the previous pass are known
  // (Model::Launch). This needs draws().
  virtual bool launches() const { return false; }
  // Launch enqueues a pass and returns. The batch has `draws` for all logit rows, and may have
  // ForwardBatch::token_rows. At most two passes may be launched and not yet collected. Collect
  // waits for the oldest one and returns its tokens, as drawn() does. They are valid until the next
  // Launch. Between the first Launch and the last Collect of a step, nothing else may run.
  virtual void Launch(const ForwardBatch& /*batch*/) {}
  virtual std::span<const int32_t> Collect() { return {}; }
  virtual int64_t vocab_size() const = 0;
  // Elements of a row of logits.
  virtual int64_t logit_width() const { return vocab_size(); }
  // The token of element `index` of a row of logits, which may lack some tokens.
  virtual int32_t TokenOf(int32_t index) const { return index; }
  // Whether the model is an MTP layer or an EAGLE head. The input of a row then includes a hidden
  // row: of the target's last pass, or of the last Forward (ForwardBatch::own_hidden).
  virtual bool takes_hidden() const = 0;
  // Elements of a hidden row of the target.
  virtual int64_t hidden_width() const { return 0; }
  // Number of MTP layers that draft one after another (ModelConfig::mtp_depths). Several need
  // takes_hidden(), and do not draw.
  virtual int64_t depths() const { return 1; }
  // Hidden rows in the model's memory. target_hidden(): of the target's last pass [.,
  // hidden_width]. hidden(): of the last Forward, for all rows or, with
  // ForwardBatch::only_logit_rows, for the logit rows.
  virtual const float* target_hidden() const { return nullptr; }
  virtual const float* hidden() const { return nullptr; }
  // Copies rows of target_hidden() to host memory.
  virtual void ReadTargetHidden(int64_t first_row, int64_t rows, float* to) {
    const float* const from = target_hidden() + first_row * hidden_width();
    std::copy_n(from, rows * hidden_width(), to);
  }
  // Makes `rows` available in the model's memory for the next Forward. Returns their address there.
  virtual const float* PlaceHidden(std::span<const float> rows) { return rows.data(); }
  // Gathers the counts of all attention groups, [dp, mine.size()]. `mine`: the counts of this
  // group.
  virtual std::vector<int64_t> GatherCounts(std::span<const int64_t> mine) = 0;
};

// The trees of drafts of a step. Each of the `width` best drafts of a level gets `width` children.
// Of all these drafts, the best `drafts` are proposed. Width 1: chains.
struct TreeShape {
  int64_t width = 1, drafts = 0;
};

// After each pass of the target, one pass of the draft model adds the rows of the new tokens to its
// cache, and gives the first draft of each decoding sequence. In the last layer, only keys and
// values are computed for rows that give no draft. Each further draft takes one more pass, with one
// row for each sequence. The draft model's cache uses the same page numbers as the target's cache.
//
// An MTP layer, or an EAGLE head, predicts the token after next: the row at position p takes the
// target's hidden row of p and the token at p + 1. Rows of later drafts take the layer's own hidden
// rows.
//
// Drafts are sampled with the parameters, the seed and the random numbers of the tokens that they
// guess. So a draft model with the target's distribution would guess each sampled token. Penalties,
// biases and the masks of grammars apply too. For these, the host samples all drafts of the pass.
//
// If the model can launch passes and none of these constraints applies, each pass is launched
// before the one before it has ended. Its rows take their tokens on the device. So the host
// prepares a pass while the device computes the previous one.
//
// With several MTP layers (DraftForward::depths), layer i takes the target's hidden row of position
// p and the token at p + 1 + i, and gives draft i + 1 (model_drafter_depths.cc). Its last rows need
// the drafts before, and are computed again in the next step, with the tokens that were sampled.
//
// With trees, each pass after the first one has `width` rows for each sequence: the best drafts of
// the last level (model_drafter_trees.cc). Their keys are in the slots after the sequence's last
// token, and a row attends to the keys of its ancestors. The most probable token takes the first
// place, or, if the request samples, the token that its random number selects. A model that samples
// tokens itself also selects the most probable ones. Otherwise, or if a constraint applies, the
// host selects them from logits. Both give equal tokens with equal probabilities. The sampled token
// may differ where a sum is rounded differently.
class ModelDrafter : public Drafter {
 public:
  // `max_rows`: of one pass. `max_saved_rows`: hidden rows that a sequence keeps while drafting is
  // off. A sequence with more missed rows gets no drafts any more. `ends_early`: ends a sequence's
  // drafts of a step once further ones are probably wrong. This requires a single attention group
  // and a model that does not sample tokens itself. `eos_token_ids`: forbidden while an output is
  // shorter than min_new_tokens. `trees`: the model has at least trees.width elements in a row of
  // logits. Borrows `model`.
  ModelDrafter(DraftForward& model, int32_t page_size, int64_t max_rows, int64_t max_saved_rows,
               bool ends_early = false, std::vector<int32_t> eos_token_ids = {},
               TreeShape trees = {})
      : model_(model),
        page_size_(page_size),
        max_rows_(max_rows),
        max_saved_rows_(max_saved_rows),
        ends_early_(ends_early),
        trees_(trees),
        sampler_(model.vocab_size(), std::move(eos_token_ids)) {
    batch_.only_logit_rows = !model.draws();  // not on GPUs
  }

  void Draft(std::span<const DraftPart> parts, int64_t limit) override;
  int64_t Backlog(const Sequence& sequence) const override;

 private:
  // A chain ends if the probability that all its drafts are right is below this. One more draft
  // takes a pass of the draft model and a row of the target. With the bundled model
  // (models/yardling) that is 0.4 of the time of a plain step, and with larger models less.
  static constexpr double kImprobable = 0.4;

  // A sequence that gets drafts, and its row in hidden() after the last pass.
  struct Chain {
    Sequence* sequence = nullptr;
    int64_t wanted = 0;
    int32_t row = 0;
    int32_t drawn_row = 0;   // its logit row in the last pass
    double probability = 1;  // product of the probabilities of its drafts in the draft model
    // With a tree: its width (1: a chain), its maximum number of drafts, and the nodes whose rows
    // are in the batch, at first the root.
    int64_t width = 1, drafts = 0;
    GrowingTree tree = {};
    std::vector<int32_t> level = {};
    int64_t slots = 0;  // cache slots in use, from position Sequence::draft_computed on

    int64_t logit_rows() const { return width > 1 ? std::ssize(level) : 1; }
  };
  void AddPart(const DraftPart& part, int64_t limit);
  // Adds to the batch the rows that were saved before, and the rows of `part`, whose hidden rows
  // are known.
  bool AddMtpRows(const DraftPart& part);
  bool AddTokenRows(const DraftPart& part);
  void Save(const DraftPart& part);
  // Appends the hidden rows of a part to `to`.
  void AppendTargetHidden(const DraftPart& part, std::vector<float>& to);
  int64_t SavedRows(const Sequence& sequence) const;
  int32_t SlotOf(const Sequence& sequence, int64_t position) const;
  void AddRow(const Sequence& sequence, int64_t position, int32_t token, int32_t hidden_row) {
    AddRowAt(SlotOf(sequence, position), position, token, hidden_row);
  }
  void AddRowAt(int32_t slot, int64_t position, int32_t token, int32_t hidden_row);
  void EndRows(const Sequence& sequence, int64_t begin, int64_t end);
  // Several MTP layers (model_drafter_depths.cc). DraftByDepth is Draft for them. AddDepthPart adds
  // the hidden rows of a part to hidden_. SaveByDepth keeps them for a later step. AddDepth fills
  // the batch with the rows of layer `depth`, and ForwardDepth runs it.
  struct DepthRows {
    Sequence* sequence = nullptr;
    int64_t hidden_begin = 0;    // position of its first row in hidden_
    int64_t hidden_row = 0;      // index of this row
    int64_t begin = 0, end = 0;  // positions that no layer has computed before
    bool decoding = false;
    int64_t wanted = 0;
    double probability = 1;  // as in Chain
  };
  void DraftByDepth(std::span<const DraftPart> parts, int64_t limit);
  void AddDepthPart(const DraftPart& part, int64_t limit);
  // Drops the saved rows that all layers have computed, if there is no room to compute them again.
  void DropComputed(Sequence& sequence);
  void SaveByDepth(const DraftPart& part);
  void AddDepth(int64_t depth);
  void ForwardDepth(int64_t depth, bool may_end);
  // Whether Sequence::saved_hidden continues with the rows of the part.
  bool JoinsSaved(const DraftPart& part) const;
  // Fills the batch with the next row of each sequence that needs more than `drafts` drafts.
  // `launched`: the last drafts are not known yet, so the rows refer to the tokens of the last
  // pass.
  void Continue(int64_t drafts, bool launched);
  // Whether the model may sample the drafts of this step itself, and whether their passes can be
  // launched ahead.
  bool CanDraw() const;
  bool CanLaunch() const;
  // Runs the passes of a step. `all`: the result of GatherCounts.
  void RunPasses(std::span<const int64_t> all, int64_t limit);
  void LaunchPasses(std::span<const int64_t> all, int64_t limit);
  // Waits for the oldest launched pass, and appends its tokens to the drafts.
  void CollectPass();
  // Later passes of a step take the model's own hidden rows.
  void TakeOwnHidden();
  // Runs the batch and appends a draft to each chain. `pass`: from 0. `may_end`: chains may end
  // early.
  void Forward(bool may_end, int64_t pass);
  // Sets the parameters of the tokens that the model samples itself, for all rows of a pass.
  void SetDraws(int64_t pass);
  // Appends the tokens that the model has sampled.
  void TakeDrawn(int64_t pass);
  // Trees (model_drafter_trees.cc). StartTree makes a chain a tree if it may be one. AddLevel adds
  // the rows of the next level to the batch. Expand adds the children of the last level, whose
  // logits are [level, logit_width]. ExpandDrawn does so if the model has selected tokens; the
  // level's logit rows begin at `first`. After the last pass, EndTree sets the drafts of the
  // sequence.
  void StartTree(const DraftPart& part, Chain& chain) const;
  void AddLevel(int64_t pass, Chain& chain, BranchSpans& spans);
  void Expand(int64_t pass, std::span<const float> logits, Chain& chain);
  void ExpandDrawn(int64_t pass, int64_t first, Chain& chain);
  static void EndTree(int64_t pass, Chain& chain);
  // The `count` most probable tokens after `drafts`. Tokens that cannot be sampled have
  // probability 0.
  std::vector<GrowingTree::Candidate> Candidates(const Sequence& sequence,
                                                 std::span<const int32_t> drafts,
                                                 std::span<const float> logits, int64_t count);
  void Clear();
  // Counts of the passes of a step: tokens, decode tokens, logit rows of each.
  std::vector<int64_t> CountsOf(int64_t limit) const;
  // Sets the counts of pass `pass` of all groups. A single group may have fewer rows than planned.
  // Returns whether any group has tokens.
  bool SetGroups(std::span<const int64_t> all, int64_t pass, int64_t limit);
  // `before`: the number of drafts before the token that is sampled.
  static kernels::RowSampling SamplingOf(const Sequence& sequence, int64_t before);
  struct Guess {
    int32_t token = 0;
    double probability = 0;  // in the draft model, given the mask
  };
  // Whether the next draft depends on more than RowSampling, so that the host samples it.
  static bool IsConstrained(const Sequence& sequence);
  // Samples the next draft. `logits` [logit_width].
  Guess Sample(const Sequence& sequence, std::span<const float> logits, bool needs_probability);
  // The logits of the token after `drafts`, by id [vocab], with penalties, biases and the mask of
  // the grammar: −inf for tokens that cannot be sampled. Valid until the next call.
  std::span<const float> Constrained(const Sequence& sequence, std::span<const int32_t> drafts,
                                     std::span<const float> logits);

  DraftForward& model_;
  const int32_t page_size_;
  const int64_t max_rows_, max_saved_rows_;
  const bool ends_early_;
  const TreeShape trees_;
  Sampler sampler_;
  ForwardBatch batch_;
  // Whether the first pass of a step also processes saved rows. Then it reads `hidden_`, else the
  // hidden rows of the target. If any group has saved rows, the pass is not recorded as a graph.
  bool takes_saved_ = false;
  std::vector<float> hidden_;  // [rows, H]
  // Scratch of Constrained.
  std::vector<float> row_;      // [vocab]
  std::vector<uint32_t> mask_;  // [MaskWords(vocab)]
  std::vector<int32_t> output_;
  std::vector<Chain> chains_;
  std::vector<DepthRows> depth_rows_;
  std::vector<size_t> depth_drafts_;  // indices in depth_rows_ of the batch's logit rows
  // The sequences of the passes that were launched and not collected, oldest pass first. Those of a
  // pass are in the order of its logit rows.
  std::deque<std::vector<Sequence*>> launched_;
};

}  // namespace switchyard
