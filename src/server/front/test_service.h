// A service without ranks, for tests of endpoints.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "server/front/front.h"
#include "server/front/served_model.h"
#include "server/front/service.h"

namespace switchyard {

// Answers each request immediately.
class AnsweringLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    for (const ControlMessage& message : messages) {
      sent.push_back(message);
      if (const auto* set = std::get_if<SetControls>(&message); set && set->ticket != 0)
        front->OnMessage(ControlsSet{.ticket = set->ticket});
      if (lost_by_query && std::holds_alternative<GetStats>(message))
        front->OnRanksLost("rank 1 was killed");
      const auto* request = std::get_if<EngineRequest>(&message);
      if (request == nullptr) continue;
      RequestOutput output = answer_to ? answer_to(*request) : answer;
      output.id = request->id;
      if (one_by_one) SendTokens(&output);
      front->OnMessage(StepOutputs{{output}});
    }
  }

  Front* front = nullptr;
  std::vector<ControlMessage> sent;
  RequestOutput answer{.finish = FinishReason::kLength};
  std::function<RequestOutput(const EngineRequest&)> answer_to;  // null: all requests get `answer`
  bool lost_by_query = false;  // true: a query for statistics ends the ranks
  bool one_by_one = false;     // true: sends one message for each token

 private:
  // Sends all tokens except the last one, which stays in `output`.
  void SendTokens(RequestOutput* output) const {
    std::vector<int32_t>& tokens = output->new_tokens;
    for (; tokens.size() > 1; tokens.erase(tokens.begin()))
      front->OnMessage(StepOutputs{{{.id = output->id, .new_tokens = {tokens.front()}}}});
  }
};

// Tokenizer, template and limits of a checkpoint, by default in tests/data/fixtures.
struct TestService {
  explicit TestService(const std::string& fixture)
      : TestService({.engine = {.model_path = SWITCHYARD_TEST_DATA "/fixtures/" + fixture}}, 512) {}
  TestService(ServerArgs server_args, int32_t context_length)
      : args(std::move(server_args)),
        plan{.model = LoadModelConfig(args.engine.model_path, args.engine.model_override_args),
             .context_length = context_length,
             .num_pages = 64},
        model(LoadServedModel(args, plan.model)),
        front(link, *model.tokenizer,
              {.vocab_size = plan.model.vocab_size,
               .context_length = context_length,
               .cache_tokens = 2 * int64_t{context_length},
               .pooling = plan.model.pooling ? plan.model.pooling->type : Pooling::kNone}),
        grammars(*model.tokenizer, plan.model.vocab_size, plan.model.eos_token_ids),
        service{front, model, args, plan, &grammars} {
    link.front = &front;
    link.answer.new_tokens = model.tokenizer->Encode("the yard", false);
    service.ready = true;
  }

  ServerArgs args;
  EnginePlan plan;
  ServedModel model;
  AnsweringLink link;
  Front front;
  Grammars grammars;
  Service service;
};

}  // namespace switchyard
