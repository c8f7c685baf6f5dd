// The servers behind the router: their addresses, health and load.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "route/policy.h"

namespace switchyard::route {

// A parsed "http://HOST:PORT[/PREFIX]".
struct WorkerUrl {
  std::string text;    // normalized; the key of a worker
  std::string host;    // name or address, an IPv6 address without brackets
  uint16_t port = 80;  // port in the URL
  std::string prefix;  // "" or "/path", without a slash at the end
};

// Error kInvalid names the part that is wrong. "HOST:PORT" means "http://HOST:PORT". https is
// refused.
WorkerUrl ParseWorkerUrl(std::string_view url);

// kPlain: computes whole requests. The others compute parts of them (--disaggregation-mode).
enum class WorkerRole : uint8_t { kPlain, kPrefill, kDecode };
const char* Name(WorkerRole role);  // SGLang's worker_type: "regular", "prefill", "decode"

struct WorkerState {
  int64_t id = 0;
  WorkerUrl url;
  WorkerRole role = WorkerRole::kPlain;
  std::optional<int> bootstrap_port;  // of a prefill worker, if it is known
  bool healthy = false;               // false also before the first check
  int64_t open = 0;                   // requests in flight
  uint64_t requests = 0, failures = 0;
  std::string last_failure;
};

// Members may be called from any thread.
class WorkerSet {
 public:
  // `failure_threshold`: consecutive failures of checks or requests after which a worker gets no
  // requests. A successful check makes it healthy again.
  explicit WorkerSet(int failure_threshold) : failure_threshold_(failure_threshold) {}

  // Error kInvalid if the URL is a worker already.
  int64_t Add(WorkerUrl url, WorkerRole role = WorkerRole::kPlain,
              std::optional<int> bootstrap_port = std::nullopt);
  int64_t Remove(const std::string& url);  // returns its id; Error kNotFound if there is none
  std::vector<WorkerState> All() const;    // ascending by id
  bool Contains(int64_t id) const;

  // Selects a healthy worker of the role that is not in `except`, and counts the request as open.
  // An empty result: there is none.
  struct Lease {
    int64_t id = -1;
    WorkerUrl url;
    WorkerRole role = WorkerRole::kPlain;
    std::optional<int> bootstrap_port;
    explicit operator bool() const { return id >= 0; }
  };
  Lease Acquire(Policy& policy, std::string_view prompt, std::span<const int64_t> except,
                WorkerRole role);
  // Whether Acquire would find a worker.
  bool HasOther(std::span<const int64_t> except, WorkerRole role) const;
  void Release(int64_t id);

  // Sessions that requests must continue at the worker that opened them. Beyond kMaxSessions, the
  // session that was opened first is forgotten. Those of a removed worker are forgotten too.
  static constexpr size_t kMaxSessions = 1 << 16;
  void OpenSession(const std::string& session, int64_t worker);
  void CloseSession(const std::string& session);
  // Selects the worker of the session, and counts the request as open. An empty result: its worker
  // is not healthy. nullopt: the session is not known.
  std::optional<Lease> AcquireFor(const std::string& session);

  // Record results of requests and checks. A bool result is whether the worker's health changed.
  void RequestSucceeded(int64_t id);
  bool CheckSucceeded(int64_t id);  // makes a worker healthy; successful requests do not
  bool Failed(int64_t id, const std::string& why);
  // No connection: the worker is unhealthy at once.
  bool Refused(int64_t id, const std::string& why);

 private:
  struct Entry {
    WorkerState state;
    int failed_in_a_row = 0;
  };
  Entry* Find(int64_t id);
  Lease LeaseOf(Entry& chosen);  // counts the request as open
  bool SetHealth(Entry& entry, bool healthy);

  const int failure_threshold_;
  mutable std::mutex mutex_;
  int64_t next_id_ = 0;
  std::vector<Entry> entries_;               // ascending by id
  std::map<std::string, int64_t> sessions_;  // session -> worker
  std::deque<std::string> opened_;           // keys of sessions_ by age, and closed ones
};

}  // namespace switchyard::route
