#include "server/pooling/classify.h"

#include <algorithm>

#include "server/http/error_body.h"
#include "server/pooling/batch.h"
#include "server/pooling/embeddings.h"
#include "server/pooling/vectors.h"

namespace switchyard::pooling {

void HandleClassify(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  if (f.Has("text") || f.Has("input_ids")) return HandleEncode(service, body, responder);
  CheckRequest(service, f, RequestKind::kClassify, RequiredOutput::kClasses);
  const bool activate = f.Bool("use_activation", f.Bool("activation", true));
  Batch batch = NewBatch(f, "classify-");
  AddPrompts(service, f, "input", ParsePrompts(service, f, "input"), &batch);
  Run(service, std::move(batch), responder,
      [activate, &service](const Batch& b, const std::vector<Accumulated>& all) {
        const PoolingConfig& config = *service.model.config.pooling;
        std::string text =
            fmt::format(R"({{"id":{},"object":"list","created":{},"model":{},"data":[)", Dump(b.id),
                        b.created, Dump(service.model.name));
        for (size_t i = 0; i < all.size(); ++i) {
          std::vector<float> scores = all[i].pooled;
          const auto best = std::ranges::max_element(scores) - scores.begin();
          if (activate) Activate(config, scores);
          text += fmt::format(R"({}{{"index":{},"label":{},"probs":{},"num_classes":{}}})",
                              i > 0 ? "," : "", i, Dump(config.labels[best]), JsonList(scores),
                              scores.size());
        }
        return text + R"(],"usage":)" + Dump(Usage(all)) + '}';
      });
}

}  // namespace switchyard::pooling
