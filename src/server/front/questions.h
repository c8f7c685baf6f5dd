// Open queries: control messages that were sent to the ranks and have no response yet.
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

// Each query has a ticket, which its response repeats. Owned by Front; not thread-safe.
class Questions {
 public:
  using OnResponse = std::function<void(const EngineMessage&)>;
  using Deliveries = std::vector<std::function<void()>>;

  // Maximum number of times that a query is sent. If the ranks ended each time, the query may be
  // the cause.
  static constexpr int kMaxSent = 2;

  // `if_lost` creates the response if the ranks are lost for good, or if they end after the query
  // was sent kMaxSent times. `if_held` creates it if there are no ranks at present; null: the query
  // waits for new ranks.
  template <typename Message>
  void Add(Message message, OnResponse on_response,
           std::function<EngineMessage(const std::string& why)> if_lost,
           std::function<EngineMessage()> if_held) {
    message.ticket = ++last_ticket_;
    open_[last_ticket_] = {message, std::move(on_response), std::move(if_lost), std::move(if_held)};
  }
  // Removes the query to which `message` responds, and returns its callback. Returns null if this
  // query is not open, or if `message` is not a response.
  OnResponse Take(const EngineMessage& message) {
    const auto ticket = std::visit(
        [](const auto& m) -> uint64_t {
          if constexpr (requires { m.ticket; }) return m.ticket;
          return 0;
        },
        message);
    auto node = open_.extract(ticket);
    return node ? std::move(node.mapped().on_response) : nullptr;
  }
  // Returns the messages of the queries that the present ranks do not have. The caller sends them.
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
  // Ends the queries that have `if_held`. Returns functions that deliver the responses.
  Deliveries TakeHeld() {
    return TakeWhere([](Question& question) { return static_cast<bool>(question.if_held); },
                     [](Question& question) { return question.if_held(); });
  }
  // Call when the ranks have ended. Ends the queries that were sent kMaxSent times. Returns
  // functions that deliver the responses.
  Deliveries OnRanksEnd(const std::string& why) {
    return TakeWhere(
        [](Question& question) {
          return std::exchange(question.with_ranks, false) && question.times_sent >= kMaxSent;
        },
        [&](Question& question) { return question.if_lost(why); });
  }
  // Call when the ranks end as planned. No query is the cause, so this send does not count towards
  // kMaxSent, and all queries are sent again.
  void OnChange() {
    for (auto& [ticket, question] : open_)
      if (std::exchange(question.with_ranks, false)) --question.times_sent;
  }
  // Ends all queries. Returns functions that deliver the responses.
  Deliveries TakeAll(const std::string& why) {
    return TakeWhere([](Question&) { return true; },
                     [&](Question& question) { return question.if_lost(why); });
  }

 private:
  struct Question {
    ControlMessage message;
    OnResponse on_response;
    std::function<EngineMessage(const std::string& why)> if_lost;
    std::function<EngineMessage()> if_held;
    bool with_ranks = false;  // was sent to the present ranks
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
      deliveries.emplace_back([on_response = std::move(question.on_response),
                               answer = make_answer(question)] { on_response(answer); });
      it = open_.erase(it);
    }
    return deliveries;
  }

  uint64_t last_ticket_ = 0;  // tickets begin at 1
  std::map<uint64_t, Question> open_;
};

}  // namespace switchyard
