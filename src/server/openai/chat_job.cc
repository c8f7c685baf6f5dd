#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "server/api/chat_fields.h"
#include "server/api/chat_output.h"
#include "server/api/grammar_fields.h"
#include "server/api/request_fields.h"
#include "server/openai/openai.h"

namespace switchyard::openai {
namespace {

WantedLogprobs ParseLogprobs(const Fields& f) {
  WantedLogprobs wanted{.output = f.Bool("logprobs", false)};
  // With top_logprobs 0, or without the field, the list of alternatives is empty.
  if (const int64_t top = f.Int("top_logprobs", 0, 0, 20); top > 0)
    wanted.top = static_cast<int32_t>(top);
  if (wanted.top > 0 && !wanted.output)
    throw InvalidField("top_logprobs", "top_logprobs requires logprobs: true");
  return wanted;
}

// Returns the end of a prompt that is given as token ids, decoded to text.
PromptEnd EndOfIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  constexpr size_t kTokens = 256;  // more than the header of any template
  const size_t count = std::min(ids.size(), kTokens);
  return EndOf(tokenizer.Decode(std::span(ids).last(count), /*skip_special_tokens=*/false));
}

// Reads the prompt, sets the parts of the prompt that the response repeats, and plans the parsing
// of outputs.
void ParsePrompt(const Service& service, const Fields& f, ChatJob& job, GenerationSpec& spec) {
  CheckTools(f);
  PromptEnd end;
  if (f.Has("input_ids")) {
    CheckFieldsWithoutMessages(f);
    CheckChatFields(f);
    spec.input_ids = f.Ids("input_ids");
    end = EndOfIds(*service.model.tokenizer, spec.input_ids);
  } else {
    CheckChatRoles(f);
    RenderedPrompt prompt = ChatPrompt(service.model, f.object(), PromptLimit(service, f));
    spec.input_ids = std::move(prompt.ids);
    end = std::move(prompt.end);
    if (f.Bool("return_prompt_text", false)) job.prompt_text = std::move(prompt.text);
    if (f.Bool("echo", false)) job.echo = EchoedText(*f.Find("messages"));
  }
  if (TruncatePrompt(service, f, spec, spec.input_ids))
    end = EndOfIds(*service.model.tokenizer, spec.input_ids);
  ConstrainChat(service, f, end, &spec);
  job.output = PlanOutput(service.model, f, std::move(end));
  if (job.output) RequestMarkers(*job.output, *service.model.tokenizer, &spec);
}

}  // namespace

std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body,
                                         const char* id_prefix) {
  const Fields f(body);
  CheckModel(service, f);
  CheckFields(f, RequestKind::kChat, service.unknown_fields);
  auto job = std::make_shared<ChatJob>();
  job->delivery = ParseDelivery(service, f, id_prefix, "chat.completion.chunk");
  job->prompt_ids = job->delivery.token_ids || f.Bool("return_prompt_token_ids", false);
  // If the request has no token limit, the output may fill the context. The front reduces the limit
  // to the space that the prompt leaves.
  GenerationSpec spec;
  ParseSampling(service, f, std::numeric_limits<int32_t>::max(), &spec);
  if (job->delivery.stream) spec.stream_interval = service.args.stream_interval;
  job->logprobs = ParseLogprobs(f);
  ParsePromptLogprobs(service, f, /*echo=*/false, &job->logprobs, &spec);
  ParseRequestId(f, f.Has("rid") ? "rid" : "request_id", 0, 1, &spec);
  spec.cache_salt = ParseCacheSalt(f, 0, 1);
  ParsePrompt(service, f, *job, spec);
  const ClientNames names = ClientNamesOf(
      f, f.Has("input_ids") ? "input_ids" : "messages",
      job->logprobs.prompt_top > job->logprobs.top ? "prompt_logprobs" : "top_logprobs");
  AddCopies(service.front, std::move(spec), job->delivery.n, names, job->specs);
  return job;
}

}  // namespace switchyard::openai
