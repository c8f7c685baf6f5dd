// Responses that clients may continue (previous_response_id), read and delete.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace switchyard::openai {

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

}  // namespace switchyard::openai
