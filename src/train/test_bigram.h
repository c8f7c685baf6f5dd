// A small bigram model for tests of the training loop.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/collectives.h"
#include "train/data/encode.h"
#include "train/run/learner.h"

namespace switchyard::train {

// Documents that count up modulo `vocab`, with all starting values.
inline std::vector<EncodedDocument> CountingDocuments(int vocab, int count) {
  std::vector<EncodedDocument> out;
  for (int d = 0; d < count; ++d) {
    EncodedDocument& document = out.emplace_back();
    for (int i = 0; i < 5 + d % 7; ++i) document.ids.push_back((d + i) % vocab);
    document.learned.assign(document.ids.size(), 1);
  }
  return out;
}

// A bigram model: the logits of the next token are the table row of the last token, plus a bias.
// Row t is on rank t % ranks only, like an expert; the bias is replicated. For simplicity, one
// all-reduce fetches the rows of other ranks, and another all-reduce sums the gradients of all
// rows. Each rank then uses its own rows of the sum.
class BigramModel : public TrainedModel {
 public:
  BigramModel(int vocab, int rank, int ranks, Collectives* all)
      : vocab_(vocab), all_(ranks == 1 ? nullptr : all) {
    for (int t = rank; t < vocab; t += ranks) Add("row." + std::to_string(t), true);
    Add("bias", false);
  }

  std::vector<Parameter<float>*> Parameters() override {
    std::vector<Parameter<float>*> out;
    for (auto& p : parameters_) out.push_back(p.get());
    return out;
  }

  Losses Learn(std::span<const Batch> batches, const StepSize& step) override {
    const auto v = static_cast<size_t>(vocab_);
    std::vector<float> table = Table();
    gradient_.assign(v * (v + 1), 0);
    Losses losses;
    for (const Batch& batch : batches) {
      for (size_t i = 0; i < batch.tokens.size(); ++i) {
        const auto token = static_cast<size_t>(batch.tokens[i]);
        if (batch.targets[i] == Batch::kIgnored) continue;
        double sum = 0;
        std::vector<double> p(v);
        for (size_t j = 0; j < v; ++j) {
          sum += p[j] = std::exp(double{table[token * v + j]} + table[v * v + j]);
        }
        const auto target = static_cast<size_t>(batch.targets[i]);
        losses.main -= std::log(p[target] / sum) / step.targets;
        for (size_t j = 0; j < v; ++j) {
          const double g = (p[j] / sum - (j == target ? 1 : 0)) / step.targets;
          gradient_[token * v + j] += static_cast<float>(g);
          gradient_[v * v + j] += static_cast<float>(g);
        }
      }
    }
    if (break_at > 0 && --break_at == 0) {
      losses.main = std::numeric_limits<double>::quiet_NaN();
      gradient_[3 * v] = std::numeric_limits<float>::infinity();
    }
    return losses;
  }

  void SumGradients() override {
    if (all_ != nullptr) all_->AllReduceSum(gradient_.data(), gradient_.size());
    for (auto& p : parameters_) {
      const size_t begin = RowOf(*p) * static_cast<size_t>(vocab_);
      for (size_t j = 0; j < p->gradient.size(); ++j) p->gradient[j] += gradient_[begin + j];
    }
  }

  int break_at = 0;  // Learn returns NaN at this call, counted from 1 from now on; 0: never

 private:
  void Add(const std::string& name, bool expert) {
    auto p = std::make_unique<Parameter<float>>();
    p->name = name;
    p->shape = {vocab_};
    p->value.assign(static_cast<size_t>(vocab_), 0.1f);
    p->gradient.assign(p->value.size(), 0);
    p->expert = expert;
    parameters_.push_back(std::move(p));
  }

  size_t RowOf(const Parameter<float>& p) const {
    return p.name == "bias" ? static_cast<size_t>(vocab_) : std::stoul(p.name.substr(4));
  }

  // [vocab + 1, vocab] rows and bias of all ranks.
  std::vector<float> Table() {
    const auto v = static_cast<size_t>(vocab_);
    std::vector<float> table(v * (v + 1));
    for (auto& p : parameters_) {
      if (p->name == "bias" && all_ != nullptr && all_->rank() != 0) continue;
      std::copy(p->value.begin(), p->value.end(),
                table.begin() + static_cast<std::ptrdiff_t>(RowOf(*p) * v));
    }
    if (all_ != nullptr) all_->AllReduceSum(table.data(), table.size());
    return table;
  }

  int vocab_;
  Collectives* all_;
  std::vector<std::unique_ptr<Parameter<float>>> parameters_;
  std::vector<float> gradient_;
};

}  // namespace switchyard::train
