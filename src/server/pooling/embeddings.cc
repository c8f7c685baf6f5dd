#include "server/http/error_body.h"
#include "server/pooling/batch.h"
#include "server/pooling/pooling.h"
#include "server/pooling/vectors.h"
#include "text/tokenizer/base64.h"

namespace switchyard::pooling {
namespace {

// Form of the embeddings of a response.
struct Form {
  size_t dimensions = 0;
  bool normalize = true;
  bool base64 = false;
};

// Returns the checkpoint's form of embeddings, with the dimensions that the request sets.
Form ParseForm(const Service& service, const Fields& f) {
  const ModelConfig& model = service.model.config;
  const int64_t width = model.output_width();
  const bool classifies = model.pooling->classifies();
  if (classifies && f.Has("dimensions"))
    throw InvalidField("dimensions", "dimensions is not supported: this model is a classifier");
  return {.dimensions = static_cast<size_t>(f.Int("dimensions", width, 1, width)),
          .normalize = model.pooling->normalize && !classifies};
}

// Like ParseForm. Also reads encoding_format, and vLLM's use_activation (or normalize, its former
// name).
Form ParseOpenAiForm(const Service& service, const Fields& f) {
  Form form = ParseForm(service, f);
  for (const char* key : {"normalize", "use_activation"})
    form.normalize = f.Bool(key, form.normalize);
  const std::string encoding = f.String("encoding_format", "float");
  if (encoding != "float" && encoding != "base64")
    throw InvalidField("encoding_format", "encoding_format is {}, want float or base64", encoding);
  form.base64 = encoding == "base64";
  return form;
}

std::string EmbeddingJson(const std::vector<float>& pooled, const Form& form) {
  const std::vector<float> vector = FinishEmbedding(pooled, form.dimensions, form.normalize);
  if (!form.base64) return JsonList(vector);
  return '"' + Base64(std::as_bytes(std::span(vector))) + '"';
}

// The object of one prompt in SGLang's native response.
std::string EncodedJson(const GenerationSpec& spec, const Accumulated& a, const Form& form) {
  const Json meta = {{"id", spec.name.empty() ? std::to_string(a.last.id) : spec.name},
                     {"finish_reason", {{"type", "length"}, {"length", 0}}},
                     {"prompt_tokens", a.last.prompt_tokens},
                     {"cached_tokens", a.last.cached_tokens},
                     {"weight_version", a.last.weight_version}};
  return R"({"embedding":)" + EmbeddingJson(a.pooled, form) + R"(,"meta_info":)" + Dump(meta) + '}';
}

}  // namespace

std::vector<float> FinishEmbedding(std::vector<float> vector, size_t dimensions, bool normalize) {
  vector.resize(dimensions);
  if (normalize) Normalize(vector);
  return vector;
}

void HandleEmbeddings(Service& service, const http::Request& request,
                      const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  CheckRequest(service, f, RequestKind::kEmbeddings, RequiredOutput::kEmbeddings);
  const Form form = ParseOpenAiForm(service, f);
  Batch batch = NewBatch(f, "embd-");
  AddPrompts(service, f, "input", ParsePrompts(service, f, "input"), &batch);
  Run(service, std::move(batch), responder,
      [form, &service](const Batch& b, const std::vector<Accumulated>& all) {
        std::string text = R"({"object":"list","data":[)";
        for (size_t i = 0; i < all.size(); ++i) {
          if (i > 0) text += ',';
          text += fmt::format(R"({{"object":"embedding","index":{},"embedding":{}}})", i,
                              EmbeddingJson(all[i].pooled, form));
        }
        return text + R"(],"model":)" + Dump(service.model.name) + R"(,"usage":)" +
               Dump(Usage(all)) + R"(,"id":)" + Dump(b.id) +
               fmt::format(R"(,"created":{}}})", b.created);
      });
}

void HandleEncode(Service& service, const Json& body, const http::Responder& responder) {
  const Fields f(body);
  CheckRequest(service, f, RequestKind::kEncode, RequiredOutput::kVectors);
  if (f.Has("text") == f.Has("input_ids"))
    throw InvalidField("text", "want one of text and input_ids");
  const char* const key = f.Has("text") ? "text" : "input_ids";
  const Form form = ParseForm(service, f);
  Batch batch = NewBatch(f, "embd-");
  bool single = false;
  AddPrompts(service, f, key, ParsePrompts(service, f, key, &single), &batch);
  Run(service, std::move(batch), responder,
      [form, single](const Batch& b, const std::vector<Accumulated>& all) {
        if (single) return EncodedJson(b.specs[0], all[0], form);
        std::string text = "[";
        for (size_t i = 0; i < all.size(); ++i) {
          if (i > 0) text += ',';
          text += EncodedJson(b.specs[i], all[i], form);
        }
        return text + ']';
      });
}

}  // namespace switchyard::pooling
