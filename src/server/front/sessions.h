// Sessions of /generate: requests that continue the tokens of earlier requests (SGLang's
// session_params).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// What a request continues.
struct SessionParams {
  std::string id;                  // of the session
  std::optional<std::string> rid;  // of the request to continue; nullopt: none
  int64_t offset = 0;  // above 0: only the first `offset` tokens of that request are kept
  // First removes all requests that continue `rid` (without `rid`: all requests of the session).
  // Those of them that still run are aborted, and so is `rid` itself. The new request then
  // continues the tokens of `rid`.
  bool replace = false;
  bool drop_previous_output = false;  // continues the prompt of the request, without its output
};

// All open sessions. A session is a tree of requests by rid. Each node has its whole prompt and
// output, so the requests of a session are ordinary requests, whose common prefixes are in the
// prefix cache. Any thread may call any member. Outlives the turns.
class Sessions {
 public:
  using Clock = std::chrono::steady_clock;
  // Limits of all sessions together.
  static constexpr size_t kMaxSessions = 4096;
  static constexpr size_t kMaxTokens = size_t{1} << 25;

  // One request of a session, from its submission to its end. Unless End is called, the request is
  // removed from the session by the destructor; a request that replaced it remains.
  class Turn {
   public:
    Turn(Sessions& sessions, std::string session, std::string rid, uint64_t serial)
        : sessions_(sessions),
          session_(std::move(session)),
          rid_(std::move(rid)),
          serial_(serial) {}
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void End(const std::vector<int32_t>& output);

   private:
    Sessions& sessions_;
    const std::string session_, rid_;
    const uint64_t serial_;
    bool ended_ = false;
  };

  // Opens a session and returns its id; an empty `id` is replaced by a new one. The session closes
  // itself after `timeout` without a request. Throws kInvalid if a session with this id is open,
  // and kBusy if too many are open.
  std::string Open(std::string id, std::optional<std::chrono::duration<double>> timeout);
  bool Close(const std::string& id);  // false: no such session

  // The tokens that a request with these parameters continues. Throws RequestError if the session
  // or the request to continue does not exist, or if that request has not ended.
  std::vector<int32_t> Context(const SessionParams& params);
  // Adds a request `rid` with its whole prompt. Appends the rids of the requests that it replaces
  // and that still run; the caller aborts them. Throws RequestError like Context, if the session
  // has a request `rid` already, or if the limit of tokens is reached.
  std::shared_ptr<Turn> Begin(const SessionParams& params, const std::string& rid,
                              std::vector<int32_t> prompt, std::vector<std::string>* replaced);

  size_t open() const;
  size_t tokens() const;  // of all requests of all sessions

 private:
  struct Node {
    uint64_t serial = 0;
    std::string parent;  // rid; empty: none
    std::vector<int32_t> prompt, output;
    bool ended = false;
  };
  struct Session {
    std::optional<std::chrono::duration<double>> timeout;
    Clock::time_point used = Clock::now();
    std::map<std::string, Node> nodes;  // by rid
  };
  // All require mutex_.
  void CloseOverdue();
  Session& Find(const std::string& id);
  const Node* Parent(const Session& session, const SessionParams& params) const;
  void Remove(Session& session, const std::string& rid, std::vector<std::string>* running);
  void RemoveChildren(Session& session, const std::string& rid, std::vector<std::string>* running);
  void Forget(const std::string& session, const std::string& rid, uint64_t serial);
  void Keep(const std::string& session, const std::string& rid, uint64_t serial,
            const std::vector<int32_t>& output);

  mutable std::mutex mutex_;  // guards all members below
  std::map<std::string, Session> sessions_;
  uint64_t last_serial_ = 0;
  size_t tokens_ = 0;
};

}  // namespace switchyard
