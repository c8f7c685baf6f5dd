// `switchyard generate`: runs the engine on rank threads of this process and streams the text.
#include <fmt/core.h>

#include <condition_variable>
#include <iostream>
#include <iterator>
#include <mutex>

#include "apps/commands.h"
#include "core/error.h"
#include "engine/engine.h"
#include "server/front/served_model.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/detokenizer.h"

namespace switchyard {
namespace {

std::vector<int32_t> Encode(const ServedModel& model, const GenerateArgs& args,
                            const std::string& prompt) {
  if (!args.chat) return model.tokenizer->Encode(prompt, true);
  ChatInput chat;
  chat.messages = {{{"role", "user"}, {"content", prompt}}};
  return EncodeRendered(*model.tokenizer, model.chat_template.Apply(chat));
}

// Prints one generation as it streams and returns its final output.
RequestOutput Stream(Engine& engine, const Tokenizer& tokenizer, EngineRequest request) {
  IncrementalDetokenizer text(tokenizer, true, request.input_ids);
  std::mutex mutex;
  std::condition_variable ended;
  RequestOutput last;
  engine.Submit(std::move(request), [&](const RequestOutput& output) {
    std::string piece = text.Push(output.new_tokens);
    if (output.finish != FinishReason::kNone) piece += text.Finish();
    fmt::print("{}", piece);
    std::fflush(stdout);
    std::lock_guard lock(mutex);
    last = output;
    if (output.finish != FinishReason::kNone) ended.notify_one();
  });
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return last.finish != FinishReason::kNone; });
  return last;
}

}  // namespace

int RunGenerate(const GenerateArgs& args) {
  const ServedModel model = LoadServedModel(args.server, ReadModelConfig(args.server.engine));
  Engine engine(args.server.engine);
  for (const std::string& prompt : args.prompts) {
    const std::string text =
        prompt == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : prompt;
    EngineRequest request{.input_ids = Encode(model, args, text)};
    request.sampling.max_new_tokens = args.max_new_tokens;
    request.sampling.temperature = args.temperature;
    request.sampling.top_p = args.top_p;
    request.sampling.top_k = args.top_k;
    request.sampling.seed = args.seed;
    request.sampling.ignore_eos = args.ignore_eos;
    Validate(request.sampling, model.config.vocab_size);
    if (!args.chat) fmt::print("{}", text);
    const RequestOutput end = Stream(engine, *model.tokenizer, std::move(request));
    fmt::print("\n");
    if (end.finish == FinishReason::kError) throw Invalid("{}", end.error);
  }
  return 0;
}

}  // namespace switchyard
