#include "server/pooling/pair_scores.h"

#include "server/pooling/vectors.h"

namespace switchyard::pooling {
namespace {

void CheckTexts(const char* key, const std::vector<std::string>& texts) {
  if (texts.empty()) throw InvalidField(key, "{} has no texts", key);
  for (const std::string& text : texts)
    if (text.empty()) throw InvalidField(key, "{} has an empty text", key);
}

}  // namespace

PairScores::PairScores(const Service& service, const Fields& f, const char* first_key,
                       const std::vector<std::string>& first, const char* second_key,
                       const std::vector<std::string>& second, Batch* batch)
    : config_(*service.model.config.pooling),
      first_(first.size()),
      pairs_(second.size()),
      activate_(f.Bool("use_activation", f.Bool("activation", true))) {
  CheckTexts(first_key, first);
  CheckTexts(second_key, second);
  if (first_ != 1 && first_ != pairs_)
    throw InvalidField(second_key, "{} has {} texts, want {}, as many as {}", second_key, pairs_,
                       first_, first_key);
  if (config_.labels.size() > 1)
    throw Invalid("this model has {} classes, so a pair has no single score: use POST /classify",
                  config_.labels.size());
  service.front.CheckCapacity(config_.classifies() ? pairs_ : first_ + pairs_);
  std::vector<std::vector<int32_t>> prompts;
  if (config_.classifies()) {
    for (size_t i = 0; i < pairs_; ++i)
      prompts.push_back(EncodePair(service, f, first[first_ == 1 ? 0 : i], second[i]));
    AddPrompts(service, f, second_key, std::move(prompts), batch);
    return;
  }
  for (const std::string& text : first) prompts.push_back(Encode(service, f, text));
  AddPrompts(service, f, first_key, std::move(prompts), batch);
  prompts.clear();
  for (const std::string& text : second) prompts.push_back(Encode(service, f, text));
  AddPrompts(service, f, second_key, std::move(prompts), batch);
}

std::vector<float> PairScores::Of(const std::vector<Accumulated>& all) const {
  std::vector<float> scores;
  for (size_t i = 0; i < pairs_; ++i) {
    if (config_.classifies()) {
      std::vector<float> score = all[i].pooled;
      if (activate_) Activate(config_, score);
      scores.push_back(score[0]);
    } else {
      scores.push_back(Cosine(all[first_ == 1 ? 0 : i].pooled, all[first_ + i].pooled));
    }
  }
  return scores;
}

}  // namespace switchyard::pooling
