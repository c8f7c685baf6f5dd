// A service without ranks, for tests of endpoints.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/front/front.h"
#include "server/front/served_model.h"
#include "server/front/service.h"

namespace switchyard {

// Answers each request at once, with the same output.
class AnsweringLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    for (const ControlMessage& message : messages) {
      const auto* request = std::get_if<EngineRequest>(&message);
      if (request == nullptr) continue;
      RequestOutput output = answer;
      output.id = request->id;
      front->OnMessage(StepOutputs{{output}});
    }
  }

  Front* front = nullptr;
  RequestOutput answer{.finish = FinishReason::kLength};
};

// Tokenizer, template and limits of a checkpoint in tests/data/fixtures.
struct TestService {
  explicit TestService(const std::string& fixture)
      : args{.engine = {.model_path = SWITCHYARD_TEST_DATA "/fixtures/" + fixture}},
        plan{.model = LoadModelConfig(args.engine.model_path),
             .context_length = 512,
             .num_pages = 64},
        model(LoadServedModel(args, plan.model)),
        front(link, *model.tokenizer,
              {.vocab_size = plan.model.vocab_size, .context_length = 512, .cache_tokens = 1024}),
        service{front, model, args, plan} {
    link.front = &front;
    link.answer.new_tokens = model.tokenizer->Encode("the yard", false);
    service.ready = true;
  }

  ServerArgs args;
  EnginePlan plan;
  ServedModel model;
  AnsweringLink link;
  Front front;
  Service service;
};

}  // namespace switchyard
