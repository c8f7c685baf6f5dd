#include "server/pooling/vectors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "core/check.h"

namespace switchyard::pooling {
namespace {

double Dot(std::span<const float> a, std::span<const float> b) {
  CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

void Normalize(std::span<float> vector) {
  const double length = std::sqrt(Dot(vector, vector));
  if (length == 0) return;
  for (float& x : vector) x = static_cast<float>(x / length);
}

void Softmax(std::span<float> scores) {
  const float most = std::ranges::max(scores);
  double sum = 0;
  for (const float x : scores) sum += std::exp(static_cast<double>(x) - most);
  for (float& x : scores) x = static_cast<float>(std::exp(static_cast<double>(x) - most) / sum);
}

void Activate(const PoolingConfig& config, std::span<float> scores) {
  switch (config.activation) {
    case PoolingConfig::Activation::kSoftmax:
      return Softmax(scores);
    case PoolingConfig::Activation::kSigmoid:
      for (float& x : scores) x = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(x))));
      return;
    case PoolingConfig::Activation::kIdentity:
      return;
  }
}

float Cosine(std::span<const float> a, std::span<const float> b) {
  const double lengths = std::sqrt(Dot(a, a)) * std::sqrt(Dot(b, b));
  return lengths == 0 ? 0.0f : static_cast<float>(Dot(a, b) / lengths);
}

std::string JsonList(std::span<const float> values) {
  char digits[32];
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    out.append(digits, std::to_chars(digits, std::end(digits), values[i]).ptr);
  }
  return out + ']';
}

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
