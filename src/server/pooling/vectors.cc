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

}  // namespace switchyard::pooling
