#include "bench/serve/answer_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace switchyard::bench {

using nlohmann::json;

std::string PathOf(const ServeOptions& options) {
  if (options.backend == "openai") return "/v1/completions";
  return options.backend == "openai-chat" ? "/v1/chat/completions" : "/generate";
}

std::string BodyOf(const ServeOptions& options, const PlannedRequest& request) {
  const bool ids = !request.input_ids.empty();
  if (options.backend == "sglang") {
    json body = {
        {"stream", true},
        {"sampling_params",
         {{"temperature", 0.0}, {"max_new_tokens", request.output_tokens}, {"ignore_eos", true}}}};
    if (ids) {
      body["input_ids"] = request.input_ids;
    } else {
      body["text"] = request.text;
    }
    return body.dump();
  }
  json body = {{"model", options.model},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"temperature", 0.0},
               {"max_tokens", request.output_tokens},
               {"ignore_eos", true}};
  if (options.backend == "openai") {
    body["prompt"] = ids ? json(request.input_ids) : json(request.text);
  } else {
    body["messages"] = json::array({{{"role", "user"}, {"content", request.text}}});
  }
  return body.dump();
}

int64_t AnswerStream::Take(std::string& bytes) {
  const int64_t before = output_tokens_;
  size_t begin = 0;
  for (size_t end; (end = bytes.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string_view event(bytes.data() + begin, end - begin);
    constexpr std::string_view kData = "data: ";
    if (event.starts_with(kData)) TakeEvent(event.substr(kData.size()));
  }
  bytes.erase(0, begin);
  return output_tokens_ - before;
}

void AnswerStream::TakeEvent(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    error_ = "an event is not a JSON object";
    return;
  }
  if (event.contains("error")) {
    error_ = event["error"].dump();
  } else if (cumulative_) {
    const json meta = event.value("meta_info", json::object());
    output_tokens_ = std::max(output_tokens_, meta.value("completion_tokens", int64_t{0}));
    prompt_tokens_ = meta.value("prompt_tokens", prompt_tokens_);
  } else {
    const json choices = event.value("choices", json::array());
    if (!choices.empty()) ++output_tokens_;
    // An event may have no token or several tokens. So the token count of the usage replaces the
    // number of events.
    if (event.contains("usage") && event["usage"].is_object()) {
      output_tokens_ = event["usage"].value("completion_tokens", output_tokens_);
      prompt_tokens_ = event["usage"].value("prompt_tokens", prompt_tokens_);
    }
  }
}

}  // namespace switchyard::bench
