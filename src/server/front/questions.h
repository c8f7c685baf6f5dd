// Control messages to the ranks ("questions") whose responses have not arrived.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/request.h"

namespace switchyard {

// Each question has a ticket, which its answer repeats. Owned by Front; not thread-safe.
class Questions {
 public:
  using OnAnswer = std::function<void(const EngineMessage&)>;

  // Returns the message to send. `if_lost` creates the response if the ranks are lost for good.
  // After a restart of the ranks, the message is sent again instead.
  template <typename Message>
  ControlMessage Add(Message message, OnAnswer on_answer,
                     std::function<EngineMessage(const std::string& why)> if_lost) {
    message.ticket = ++last_ticket_;
    open_[last_ticket_] = {message, std::move(on_answer), std::move(if_lost)};
    return message;
  }
  // Removes the question that `message` answers, and returns its callback. Returns null if this
  // question is not open, or if `message` is not an answer.
  OnAnswer Take(const EngineMessage& message) {
    const auto ticket = std::visit(
        [](const auto& m) -> uint64_t {
          if constexpr (requires { m.ticket; }) return m.ticket;
          return 0;
        },
        message);
    auto node = open_.extract(ticket);
    return node ? std::move(node.mapped().on_answer) : nullptr;
  }
  // The messages of all open questions, to send to new ranks.
  std::vector<ControlMessage> Messages() const {
    std::vector<ControlMessage> messages;
    for (const auto& [ticket, question] : open_) messages.push_back(question.message);
    return messages;
  }
  // Ends all questions. Returns functions that deliver the answers.
  std::vector<std::function<void()>> TakeAll(const std::string& why) {
    std::vector<std::function<void()>> deliveries;
    for (auto& [ticket, question] : std::exchange(open_, {})) {
      deliveries.emplace_back([on_answer = std::move(question.on_answer),
                               answer = question.if_lost(why)] { on_answer(answer); });
    }
    return deliveries;
  }

 private:
  struct Question {
    ControlMessage message;
    OnAnswer on_answer;
    std::function<EngineMessage(const std::string& why)> if_lost;
  };

  uint64_t last_ticket_ = 0;  // tickets begin at 1
  std::map<uint64_t, Question> open_;
};

}  // namespace switchyard
