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
  using Deliveries = std::vector<std::function<void()>>;

  // Most times that a question is sent. If ranks have ended so often, it may be the cause.
  static constexpr int kMaxSent = 2;

  // `if_lost` creates the response if the ranks are lost for good, or if they end after the
  // question was sent kMaxSent times. `if_held` creates it if there are no ranks at present; null:
  // the question waits for new ones.
  template <typename Message>
  void Add(Message message, OnAnswer on_answer,
           std::function<EngineMessage(const std::string& why)> if_lost,
           std::function<EngineMessage()> if_held) {
    message.ticket = ++last_ticket_;
    open_[last_ticket_] = {message, std::move(on_answer), std::move(if_lost), std::move(if_held)};
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
  // The messages of the questions that the ranks do not have, to be sent now.
  std::vector<ControlMessage> TakeUnsent() {
    std::vector<ControlMessage> messages;
    for (auto& [ticket, question] : open_) {
      if (question.with_ranks) continue;
      question.with_ranks = true;
      ++question.times_sent;
      messages.push_back(question.message);
    }
    return messages;
  }
  // Ends the questions that have an answer without ranks. Returns functions that deliver it.
  Deliveries TakeHeld() {
    return TakeWhere([](Question& question) { return static_cast<bool>(question.if_held); },
                     [](Question& question) { return question.if_held(); });
  }
  // The ranks have ended. Ends the questions that may not be sent again.
  Deliveries OnRanksEnd(const std::string& why) {
    return TakeWhere(
        [](Question& question) {
          return std::exchange(question.with_ranks, false) && question.times_sent >= kMaxSent;
        },
        [&](Question& question) { return question.if_lost(why); });
  }
  // Ends all questions. Returns functions that deliver the answers.
  Deliveries TakeAll(const std::string& why) {
    return TakeWhere([](Question&) { return true; },
                     [&](Question& question) { return question.if_lost(why); });
  }

 private:
  struct Question {
    ControlMessage message;
    OnAnswer on_answer;
    std::function<EngineMessage(const std::string& why)> if_lost;
    std::function<EngineMessage()> if_held;
    bool with_ranks = false;  // the present ranks have it
    int times_sent = 0;
  };
  template <typename Condition, typename MakeAnswer>
  Deliveries TakeWhere(const Condition& condition, const MakeAnswer& make_answer) {
    Deliveries deliveries;
    for (auto it = open_.begin(); it != open_.end();) {
      Question& question = it->second;
      if (!condition(question)) {
        ++it;
        continue;
      }
      deliveries.emplace_back([on_answer = std::move(question.on_answer),
                               answer = make_answer(question)] { on_answer(answer); });
      it = open_.erase(it);
    }
    return deliveries;
  }

  uint64_t last_ticket_ = 0;  // tickets begin at 1
  std::map<uint64_t, Question> open_;
};

}  // namespace switchyard
