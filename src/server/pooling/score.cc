#include <cmath>
#include <memory>
#include <optional>

#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/pooling/batch.h"
#include "server/pooling/pooling.h"
#include "server/pooling/vectors.h"

namespace switchyard::pooling {
namespace {

// Whether `value` is a list of token ids. SGLang's query and items may be texts or lists of ids.
bool IsIds(const Json& value) {
  return value.is_array() && (value.empty() || value.front().is_number());
}

// Query and item, in the order of the prompt. Texts are joined before tokenization (SGLang).
std::vector<int32_t> JoinPrompt(const Service& service, const Fields& f, const Json& query,
                                const Json& item, bool item_first) {
  const Json& first = item_first ? item : query;
  const Json& second = item_first ? query : item;
  if (query.is_string() && item.is_string())
    return Encode(service, f, first.get<std::string>() + second.get<std::string>());
  if (!IsIds(query) || !IsIds(item))
    throw InvalidField("items", "query and items: want texts, or lists of ids, for both");
  std::vector<int32_t> ids = ToIds(first, "items");
  const std::vector<int32_t> more = ToIds(second, "items");
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::vector<std::vector<int32_t>> ParseItems(const Service& service, const Fields& f) {
  const Json* query = f.Find("query");
  const Json* items = f.Find("items");
  if (!query) throw InvalidField("query", "query is missing");
  if (!items) throw InvalidField("items", "items is missing");
  const bool item_first = f.Bool("item_first", false);
  std::vector<std::vector<int32_t>> prompts;
  if (items->is_string()) {
    prompts.push_back(JoinPrompt(service, f, *query, *items, item_first));
  } else if (items->is_array()) {
    service.front.CheckCapacity(items->size());
    for (const Json& item : *items)
      prompts.push_back(JoinPrompt(service, f, *query, item, item_first));
  }
  if (prompts.empty()) throw InvalidField("items", "items has no texts");
  return prompts;
}

// The scores of one item: those of the classes, or the log-probabilities of the labels.
std::vector<float> RawScores(const Accumulated& a) {
  if (!a.pooled.empty()) return a.pooled;
  std::vector<float> scores;
  for (const TokenLogprob& label : a.output_logprobs.at(0).requested)
    scores.push_back(label.logprob);
  return scores;
}

void ScoreItems(Service& service, const Fields& f, const http::Responder& responder) {
  const bool pooled = service.model.config.pooling.has_value();
  if (pooled && !service.model.config.pooling->classifies())
    throw InvalidField("query",
                       "query and items need a model that generates text, or a classifier; this "
                       "model has embeddings: use text_1 and text_2");
  const std::vector<int32_t> labels =
      f.Has("label_token_ids") ? f.Ids("label_token_ids") : std::vector<int32_t>();
  if (!pooled && labels.empty())
    throw InvalidField("label_token_ids", "label_token_ids is missing or empty");
  const bool softmax = f.Bool("apply_softmax", false);
  Batch batch = NewBatch(f, "score-");
  AddPrompts(service, f, "items", ParseItems(service, f), &batch, pooled);
  for (GenerationSpec& spec : batch.specs) {
    if (pooled) continue;
    spec.sampling.temperature = 0;
    spec.sampling.ignore_eos = true;
    spec.logprob = {.enabled = true, .token_ids = labels};
    service.front.Check(spec);
  }
  Run(service, std::move(batch), responder,
      [softmax, pooled, &service](const Batch&, const std::vector<Accumulated>& all) {
        std::string text = R"({"scores":[)";
        for (size_t i = 0; i < all.size(); ++i) {
          std::vector<float> scores = RawScores(all[i]);
          if (softmax) {
            Softmax(scores);
          } else if (!pooled) {
            for (float& score : scores) score = std::exp(score);
          }
          if (i > 0) text += ',';
          text += JsonList(scores);
        }
        return text + R"(],"model":)" + Dump(service.model.name) + R"(,"usage":)" +
               Dump(Usage(all)) + R"(,"object":"scoring"})";
      });
}

// The names of the two texts of a pair.
struct PairKeys {
  const char *first, *second;
};

std::optional<PairKeys> FindPairKeys(const Fields& f) {
  for (const PairKeys keys : {PairKeys{"text_1", "text_2"}, PairKeys{"queries", "documents"},
                              PairKeys{"queries", "items"}, PairKeys{"data_1", "data_2"}})
    if (f.Has(keys.first) && f.Has(keys.second)) return keys;
  return std::nullopt;
}

}  // namespace

void HandleScore(Service& service, const http::Request& request, const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  if (f.Has("query") || f.Has("label_token_ids")) {
    CheckModel(service, f);
    CheckFields(f, RequestKind::kScore, service.unknown_fields);
    return ScoreItems(service, f, responder);
  }
  CheckRequest(service, f, RequestKind::kScore, RequiredOutput::kVectors);
  const auto keys = FindPairKeys(f);
  if (!keys)
    throw InvalidField(
        "text_1",
        "want text_1 and text_2, or one of the equivalent pairs: queries and documents, "
        "queries and items, data_1 and data_2");
  Batch batch = NewBatch(f, "score-");
  const auto pairs =
      std::make_shared<const PairScores>(service, f, keys->first, f.Strings(keys->first),
                                         keys->second, f.Strings(keys->second), &batch);
  Run(service, std::move(batch), responder,
      [pairs, &service](const Batch& b, const std::vector<Accumulated>& all) {
        Json data = Json::array();
        for (const float score : pairs->Of(all))
          data.push_back({{"index", data.size()}, {"object", "score"}, {"score", score}});
        return Dump({{"id", b.id},
                     {"object", "list"},
                     {"created", b.created},
                     {"model", service.model.name},
                     {"data", std::move(data)},
                     {"usage", Usage(all)}});
      });
}

}  // namespace switchyard::pooling
