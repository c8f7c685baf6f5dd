#include "train/app/score.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/error.h"
#include "model/families/family.h"
#include "train/app/token_report.h"
#include "train/data/corpus.h"
#include "train/math/product.h"
#include "train/model.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kBlock = 256;  // rows for which logits are computed at a time

int64_t MtpLayersOf(const fs::path& model) {
  std::ifstream in(model / "config.json");
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object()) return 0;
  const auto at = json.find("num_nextn_predict_layers");
  return at != json.end() && at->is_number_unsigned() ? std::min<int64_t>(at->get<int64_t>(), 16)
                                                      : 0;
}

const Parameter<float>& HeadOf(Model<float>& model) {
  const TensorNames names = NamesOf(model.config());
  const std::string& name = model.config().tie_embeddings ? names.embedding : names.head;
  for (const Parameter<float>* p : model.parameters()) {
    if (p->name == name) return *p;
  }
  throw Invalid("the model has no tensor {}", name);
}

struct RowScores {
  std::vector<int32_t> choices;  // [m] the most likely token
  std::vector<float> logprobs;   // [m] log-probability of the target; NaN: no target
};

float LogprobOf(int32_t token, const float* logits, int64_t vocab) {
  if (token == Batch::kIgnored) return std::numeric_limits<float>::quiet_NaN();
  const float largest = *std::max_element(logits, logits + vocab);
  double sum = 0.0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i] - largest));
  return static_cast<float>(static_cast<double>(logits[token] - largest) - std::log(sum));
}

// The scores of each row of hidden [m, H]. `targets` [m], or empty: without log-probabilities.
RowScores ScoreRows(const Parameter<float>& head, const std::vector<float>& hidden,
                    std::span<const int32_t> targets, ThreadPool& pool) {
  const int64_t vocab = head.shape[0], size = head.shape[1];
  const int64_t m = static_cast<int64_t>(hidden.size()) / size;
  RowScores out{.choices = std::vector<int32_t>(static_cast<size_t>(m)),
                .logprobs = std::vector<float>(static_cast<size_t>(m))};
  std::vector<float> logits(static_cast<size_t>(std::min(m, kBlock) * vocab));
  for (int64_t begin = 0; begin < m; begin += kBlock) {
    const int64_t rows = std::min(kBlock, m - begin);
    const Projection<float> projection{.x = hidden.data() + begin * size,
                                       .w = head.value.data(),
                                       .y = logits.data(),
                                       .m = rows,
                                       .n = vocab,
                                       .k = size};
    Project<float>({&projection, 1}, pool);
    pool.RunRanges(rows, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const float* row = logits.data() + i * vocab;
        const auto at = static_cast<size_t>(begin + i);
        out.choices[at] = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
        if (!targets.empty()) out.logprobs[at] = LogprobOf(targets[at], row, vocab);
      }
    });
  }
  return out;
}

struct Counts {
  double loss = 0;
  int64_t positions = 0, right = 0;
  int64_t drafts = 0, agreed = 0;          // only at positions with a target
  int64_t all_drafts = 0, all_agreed = 0;  // at all positions
};

void Count(const Parameter<float>& head, const Pass<float>& pass, const RowScores& scores,
           ThreadPool& pool, Counts* counts) {
  const DepthState<float>& main = pass.depths[0];
  const std::vector<int32_t>& own = scores.choices;
  for (size_t t = 0; t < own.size(); ++t) {
    if (main.targets[t] == Batch::kIgnored) continue;
    ++counts->positions;
    counts->right += own[t] == main.targets[t] ? 1 : 0;
  }
  if (pass.depths.size() < 2) return;
  // Row i of the module drafts the token that follows position source[i] + 1. This draft is
  // compared with the token that the model itself predicts at position source[i] + 1.
  const DepthState<float>& module = pass.depths[1];
  const std::vector<int32_t> drafts = ScoreRows(head, module.final, {}, pool).choices;
  for (size_t i = 0; i < drafts.size(); ++i) {
    const auto later = static_cast<size_t>(module.source[i]) + 1;
    const int agrees = drafts[i] == own[later] ? 1 : 0;
    ++counts->all_drafts;
    counts->all_agreed += agrees;
    if (main.targets[later] == Batch::kIgnored) continue;
    ++counts->drafts;
    counts->agreed += agrees;
  }
}

double Ratio(int64_t some, int64_t all) {
  return all == 0 ? 0.0 : static_cast<double>(some) / static_cast<double>(all);
}

void AddBalance(const Model<float>& model, Json* out) {
  Json layers = Json::array();
  double sum = 0, worst = 1;
  int64_t dead = 0;
  size_t index = 0;
  for (int64_t layer = 0; layer < model.config().num_layers(); ++layer) {
    if (!model.config().layers[static_cast<size_t>(layer)].moe) continue;
    const std::vector<float>& loads = model.loads()[index++];
    const double most = *std::ranges::max_element(loads);
    const double mean =
        std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
    const double even = most > 0 ? mean / most : 1.0;
    const int64_t idle = std::ranges::count(loads, 0.0f);
    sum += even;
    worst = std::min(worst, even);
    dead += idle;
    layers.push_back({{"layer", layer},
                      {"balancedness", even},
                      {"dead_experts", idle},
                      {"loads", std::vector<int64_t>(loads.begin(), loads.end())}});
  }
  if (layers.empty()) return;
  (*out)["balancedness"] = sum / static_cast<double>(layers.size());
  (*out)["balancedness_worst"] = worst;
  (*out)["dead_experts"] = dead;
  (*out)["layers"] = std::move(layers);
  const auto& [replayed, agreed] = model.replay();
  if (replayed == 0.0) return;
  (*out)["routing_replay"] = {{"selections", static_cast<int64_t>(replayed)},
                              {"agreement", agreed / replayed}};
}

}  // namespace

Json ScoreModel(const ScoreOptions& options) {
  const ModelConfig config = LoadModelConfig(options.model);
  const DocumentEncoder encoder(options.tokenizer.empty() ? options.model : options.tokenizer,
                                options.chat_loss, ModelShape::Of(config));
  std::vector<EncodedDocument> documents;
  std::vector<std::string> names;
  for (const Document& document : ReadDocuments(options.data)) {
    documents.push_back(encoder.Encode(document));
    names.push_back(document.where);
    if (!options.routing_replay) documents.back().experts.reset();
  }
  const auto count = documents.size();
  const int64_t length = std::min(options.length, config.max_position);
  Corpus corpus(std::move(documents),
                {.length = length, .whole_documents = true, .shuffle = false});

  ThreadPool pool(options.threads);
  const LossOptions losses{.mtp_layers = MtpLayersOf(options.model)};
  Model<float> model(config, losses, {}, pool);
  model.Load(options.model);
  const Parameter<float>& head = HeadOf(model);

  Counts counts;
  TokenReport report(config, std::move(names), options.tokens);
  Pass<float> pass;
  SamplePosition position;
  for (int64_t left = corpus.RowsOf(0); left > 0;) {
    const int64_t rows = std::min(left, options.rows_per_pass);
    left -= rows;
    Batch batch;
    std::vector<Part> parts;
    for (const Row& row : corpus.Take(rows, &position)) {
      AppendRow(corpus.documents(), row, &batch);
      parts.insert(parts.end(), row.begin(), row.end());
    }
    model.Begin(batch, {}, &pass);  // the default StepSize divides by 1, so losses are sums
    model.Forward(&pass);
    model.Heads(false, &pass);
    counts.loss += pass.losses.main;
    const RowScores scores = ScoreRows(head, pass.depths[0].final, pass.depths[0].targets, pool);
    Count(head, pass, scores, pool, &counts);
    report.Add(corpus.documents(), parts, pass, scores.logprobs);
  }

  Json out = {{"documents", count},
              {"tokens", corpus.tokens()},
              {"positions", counts.positions},
              {"loss", counts.loss / static_cast<double>(std::max<int64_t>(counts.positions, 1))},
              {"accuracy", Ratio(counts.right, counts.positions)}};
  if (losses.mtp_layers > 0) {
    out["mtp_positions"] = counts.drafts;
    out["mtp_agreement"] = Ratio(counts.agreed, counts.drafts);
    out["mtp_agreement_anywhere"] = Ratio(counts.all_agreed, counts.all_drafts);
  }
  AddBalance(model, &out);
  report.AddTo(&out);
  return out;
}

}  // namespace switchyard::train
