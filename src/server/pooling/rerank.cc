#include <algorithm>
#include <memory>
#include <numeric>

#include "server/http/error_body.h"
#include "server/pooling/batch.h"
#include "server/pooling/pooling.h"
#include "server/pooling/vectors.h"

namespace switchyard::pooling {
namespace {

// Each document is a text, or an object with "text".
std::vector<std::string> ParseDocuments(const Fields& f) {
  const Json* list = f.Find("documents");
  if (!list) throw InvalidField("documents", "documents is missing");
  if (!list->is_array()) throw InvalidField("documents", "documents is not a list");
  std::vector<std::string> documents;
  for (const Json& document : *list) {
    const Json* text =
        document.is_object() && document.contains("text") ? &document["text"] : &document;
    if (!text->is_string())
      throw InvalidField("documents", "documents: want texts, or objects with a text");
    documents.push_back(text->get<std::string>());
  }
  return documents;
}

}  // namespace

void HandleRerank(Service& service, const http::Request& request,
                  const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckRequest(service, f, RequestKind::kRerank, RequiredOutput::kVectors);
  const auto documents = std::make_shared<const std::vector<std::string>>(ParseDocuments(f));
  const auto count = std::ssize(*documents);
  // 0: all documents (vLLM).
  const int64_t top = f.Int("top_n", 0, 0, INT32_MAX);
  const int64_t most = top == 0 ? count : std::min<int64_t>(top, count);
  const bool shown = f.Bool("return_documents", true);
  Batch batch = NewBatch(f, "rerank-");
  const auto pairs = std::make_shared<const PairScores>(
      service, f, "query", std::vector{f.String("query", "")}, "documents", *documents, &batch);
  Run(service, std::move(batch), responder,
      [=, &service](const Batch& b, const std::vector<Accumulated>& all) {
        const std::vector<float> scores = pairs->Of(all);
        std::vector<int64_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order,
                                 [&](int64_t a, int64_t c) { return scores[a] > scores[c]; });
        Json results = Json::array();
        for (const int64_t i : std::span(order).first(most)) {
          Json& result = results.emplace_back(Json{{"index", i}});
          if (shown) result["document"]["text"] = (*documents)[i];
          result["relevance_score"] = scores[i];
        }
        return Dump({{"id", b.id},
                     {"model", service.model.name},
                     {"usage", Usage(all)},
                     {"results", std::move(results)}});
      });
}

}  // namespace switchyard::pooling
