// OpenAI's Responses API: items of requests and responses, and the store of responses.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/api/json_body.h"
#include "text/output/output_events.h"

namespace switchyard::openai {

// Output items of a response of OpenAI's Responses API, and the events of its stream.

// Builds the items of one response: reasoning, message and function_call. One thread at a time.
class ResponseItems {
 public:
  // Callback for each event of a stream. Arguments: the type of the event, and its other members.
  // May be null.
  using Sink = std::function<void(const std::string& type, Json members)>;
  explicit ResponseItems(Sink sink = nullptr) : sink_(std::move(sink)) {}

  void Add(const std::vector<OutputEvent>& events);
  // Ends the last item. `complete`: false marks it as incomplete.
  void Finish(bool complete);
  const Json& items() const { return items_; }
  // Returns the items as a chat message of the assistant, which the next request of the
  // conversation needs.
  Json Message() const;

 private:
  void AddText(const char* type, const std::string& text);
  void AddCall(const OutputEvent& event);
  void BeginText(const char* type);
  void End(const char* status);
  Json Place() const;  // item_id and output_index of the last item
  void Emit(const std::string& type, Json members) const;

  Sink sink_;
  Json items_ = Json::array();
  std::string open_;  // type of the last item; empty if it has ended
};

// "<prefix>_" and 32 hexadecimal digits.
std::string NewItemId(const char* prefix);

// Responses that clients may continue (previous_response_id), read and delete.

// Keeps responses in memory, up to a number and a total size. If a limit is exceeded, the oldest
// responses are removed. Nothing is written to files, so responses are lost at a restart.
// Thread-safe.
class ResponseStore {
 public:
  struct Limits {
    size_t responses = 1024;
    size_t bytes = size_t{64} << 20;  // limit for all JSON texts
  };
  // JSON texts.
  struct Entry {
    std::string response;
    // Messages of the conversation: without instructions, including the response.
    std::string messages;
    std::string input;  // the messages of the request
    size_t Bytes() const { return response.size() + messages.size() + input.size(); }
  };

  ResponseStore();
  explicit ResponseStore(Limits limits) : limits_(limits) {}

  // An entry larger than the limit is not kept.
  void Put(const std::string& id, Entry entry);
  std::optional<Entry> Find(const std::string& id) const;
  bool Erase(const std::string& id);

 private:
  using Entries = std::list<std::pair<std::string, Entry>>;  // oldest first
  void Remove(Entries::iterator entry);

  const Limits limits_;
  mutable std::mutex mutex_;  // guards the members below
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

// Converts requests of OpenAI's Responses API to chat requests.

// The chat messages of `input`, without instructions. Items of reasoning and function calls become
// part of the adjacent assistant message. Outputs of functions become messages of role tool. Throws
// RequestError that names the field.
Json InputMessages(const Fields& f);

// Converts the request `f` to a body of /v1/chat/completions with the same meaning. `messages`: the
// messages of earlier responses, followed by those of `input`. Throws RequestError that names the
// field of `f`.
Json ResponsesChatBody(const Fields& f, const Json& messages);

}  // namespace switchyard::openai
