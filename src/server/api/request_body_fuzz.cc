// Fuzzes the body parsers of all endpoints. Any input must give a parsed request or an Error.
#include <memory>

#include "server/front/service.h"
#include "server/native/native.h"
#include "server/openai/openai.h"

namespace switchyard {
namespace {

// Finishes each request immediately, so that open requests do not accumulate in Front.
class EndingLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    for (const ControlMessage& m : messages) {
      if (const auto* r = std::get_if<EngineRequest>(&m)) {
        front->OnMessage(
            StepOutputs{{{.id = r->id, .new_tokens = {1}, .finish = FinishReason::kLength}}});
      }
    }
  }
  Front* front = nullptr;
};

struct World {
  ServerArgs args;
  EnginePlan plan;
  ServedModel model;
  EndingLink link;
  Front front;
  Service service;

  World()
      : args{.engine = {.model_path = SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe"}},
        plan{.model = LoadModelConfig(args.engine.model_path),
             .context_length = 512,
             .num_pages = 64},
        model(LoadServedModel(args, plan.model)),
        front(link, *model.tokenizer,
              {.vocab_size = 512, .context_length = 512, .cache_tokens = 1024}),
        service{front, model, args, plan} {
    link.front = &front;
  }
};

template <typename F>
void MayRefuse(const F& parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace switchyard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace switchyard;
  static World world;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  MayRefuse([&] {
    const Json json = ParseBody(body);
    MayRefuse([&] {
      for (GenerationSpec& spec : native::ParseGenerateBody(world.service, json).specs) {
        MayRefuse([&] { world.front.Submit(std::move(spec), [](const GenerationEvent&) {}); });
      }
    });
    MayRefuse([&] { openai::ParseCompletion(world.service, json); });
    MayRefuse([&] { openai::ParseChat(world.service, json); });
  });
  return 0;
}
