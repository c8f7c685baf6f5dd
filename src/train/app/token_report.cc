#include "train/app/token_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "text/tokenizer/base64.h"

namespace switchyard::train {
namespace {

using Json = nlohmann::ordered_json;

// The experts of rows [begin, begin + n) of a pass, [n, layers, top_k]; -1 in layers without
// experts.
std::vector<int32_t> ExpertsOf(const Pass<float>& pass, const ModelConfig& config, int64_t begin,
                               int64_t n) {
  const int64_t k = config.moe->router.top_k, layers = config.num_layers();
  std::vector<int32_t> experts(n * layers * k, -1);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (!config.layers[layer].moe) continue;
    const std::vector<int32_t>& ids = pass.layers[layer].moe.router.topk.ids;
    for (int64_t t = 0; t < n; ++t)
      std::copy_n(ids.begin() + (begin + t) * k, k, experts.begin() + (t * layers + layer) * k);
  }
  return experts;
}

}  // namespace

TokenReport::TokenReport(const ModelConfig& config, std::vector<std::string> names,
                         const std::filesystem::path& path)
    : config_(config), names_(std::move(names)), path_(path) {
  if (path_.empty()) return;
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) throw Resource("{}: cannot be written", path_.string());
}

void TokenReport::Add(const std::vector<EncodedDocument>& documents, std::span<const Part> parts,
                      const Pass<float>& pass, std::span<const float> logprobs) {
  int64_t begin = 0;
  for (const Part& part : parts) {
    const auto own = logprobs.subspan(begin, part.length);
    Compare(documents[part.document], part, own);
    if (out_.is_open()) Write(part, pass, begin, own);
    begin += part.length;
  }
  CHECK_EQ(begin, std::ssize(logprobs));
}

void TokenReport::Compare(const EncodedDocument& document, const Part& part,
                          std::span<const float> logprobs) {
  for (int64_t i = 0; i < part.length && !document.logprobs.empty(); ++i) {
    const float theirs = document.logprobs[part.begin + i + 1];  // of the next token
    if (std::isnan(theirs) || std::isnan(logprobs[i])) continue;
    const double difference = std::abs(static_cast<double>(theirs) - logprobs[i]);
    ++compared_;
    sum_ += difference;
    largest_ = std::max(largest_, difference);
  }
}

void TokenReport::Write(const Part& part, const Pass<float>& pass, int64_t begin,
                        std::span<const float> logprobs) {
  const auto first = pass.depths[0].tokens.begin() + begin;
  Json line = {{"document", names_[part.document]},
               {"begin", part.begin},
               {"token_ids", std::vector<int32_t>(first, first + part.length)},
               {"logprobs", Json::array()}};
  for (const float value : logprobs)
    line["logprobs"].push_back(std::isnan(value) ? Json() : Json(value));
  if (config_.has_moe()) {
    const std::vector<int32_t> experts = ExpertsOf(pass, config_, begin, part.length);
    line["routed_experts"] = Base64(std::as_bytes(std::span(experts)));
  }
  out_ << line.dump() << '\n';
}

void TokenReport::AddTo(Json* out) {
  if (compared_ > 0) {
    (*out)["rollout_logprobs"] = {{"positions", compared_},
                                  {"mean_difference", sum_ / static_cast<double>(compared_)},
                                  {"max_difference", largest_}};
  }
  if (!out_.is_open()) return;
  out_.close();
  if (!out_) throw Resource("{}: cannot be written", path_.string());
}

}  // namespace switchyard::train
