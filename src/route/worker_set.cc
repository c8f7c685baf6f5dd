#include "route/worker_set.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"

namespace switchyard::route {

WorkerUrl ParseWorkerUrl(std::string_view url) {
  const std::string given(url);
  const auto fail = [&](std::string_view why) { return Invalid("worker URL {}: {}", given, why); };
  if (const size_t scheme = url.find("://"); scheme != std::string_view::npos) {
    if (url.substr(0, scheme) == "https")
      throw fail("https is not supported; the router and its workers need a trusted network");
    if (url.substr(0, scheme) != "http") throw fail("want http://HOST:PORT");
    url.remove_prefix(scheme + 3);
  }
  if (url.find_first_of("?#@ ") != std::string_view::npos)
    throw fail("want http://HOST:PORT without user, query or fragment");
  WorkerUrl out;
  const size_t path = std::min(url.find('/'), url.size());
  out.prefix = url.substr(path);
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  url = url.substr(0, path);
  std::string_view port;
  const bool bracket = url.starts_with('[');
  if (bracket) {
    const size_t close = url.find(']');
    if (close == std::string_view::npos) throw fail("the IPv6 address has no closing bracket");
    out.host = url.substr(1, close - 1);
    url.remove_prefix(close + 1);
    if (!url.empty() && !url.starts_with(':')) throw fail("want a port after the address");
    port = url.empty() ? url : url.substr(1);
    if (!url.empty() && port.empty()) throw fail("the port is missing");
  } else {
    const size_t colon = url.find(':');
    if (colon != std::string_view::npos && url.find(':', colon + 1) != std::string_view::npos)
      throw fail("an IPv6 address needs brackets: http://[::1]:30000");
    out.host = url.substr(0, std::min(colon, url.size()));
    if (colon != std::string_view::npos) {
      port = url.substr(colon + 1);
      if (port.empty()) throw fail("the port is missing");
    }
  }
  if (out.host.empty()) throw fail("the host is missing");
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (error != std::errc() || end != port.data() + port.size() || out.port == 0)
      throw fail("the port must be a number from 1 to 65535");
  }
  out.text = fmt::format("http://{}:{}{}", bracket ? "[" + out.host + "]" : out.host, out.port,
                         out.prefix);
  return out;
}

WorkerSet::Entry* WorkerSet::Find(int64_t id) {
  const auto found = std::ranges::find(entries_, id, [](const Entry& e) { return e.state.id; });
  return found == entries_.end() ? nullptr : &*found;
}

bool WorkerSet::SetHealth(Entry& entry, bool healthy) {
  return std::exchange(entry.state.healthy, healthy) != healthy;
}

const char* Name(WorkerRole role) {
  return role == WorkerRole::kPrefill  ? "prefill"
         : role == WorkerRole::kDecode ? "decode"
                                       : "regular";
}

int64_t WorkerSet::Add(WorkerUrl url, WorkerRole role, std::optional<int> bootstrap_port) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.state.url.text == url.text) throw Invalid("{} is a worker already", url.text);
  entries_.push_back(
      {.state = {
           .id = next_id_, .url = std::move(url), .role = role, .bootstrap_port = bootstrap_port}});
  return next_id_++;
}

int64_t WorkerSet::Remove(const std::string& url) {
  const std::string text = ParseWorkerUrl(url).text;
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->state.url.text != text) continue;
    const int64_t id = entry->state.id;
    entries_.erase(entry);
    std::erase_if(sessions_, [id](const auto& session) { return session.second == id; });
    return id;
  }
  throw NotFound("{} is not a worker", text);
}

std::vector<WorkerState> WorkerSet::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkerState> all;
  for (const Entry& entry : entries_) all.push_back(entry.state);
  return all;
}

bool WorkerSet::Contains(int64_t id) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const Entry& e) { return e.state.id == id; });
}

WorkerSet::Lease WorkerSet::Acquire(Policy& policy, std::string_view prompt,
                                    std::span<const int64_t> except, WorkerRole role) {
  const std::lock_guard lock(mutex_);
  std::vector<Candidate> candidates;
  for (const Entry& entry : entries_)
    if (entry.state.healthy && entry.state.role == role &&
        std::ranges::find(except, entry.state.id) == except.end())
      candidates.push_back({.worker = entry.state.id, .open = entry.state.open});
  if (candidates.empty()) return {};
  return LeaseOf(*Find(policy.Choose(candidates, prompt)));
}

WorkerSet::Lease WorkerSet::LeaseOf(Entry& chosen) {
  ++chosen.state.open;
  ++chosen.state.requests;
  return {.id = chosen.state.id,
          .url = chosen.state.url,
          .role = chosen.state.role,
          .bootstrap_port = chosen.state.bootstrap_port};
}

void WorkerSet::OpenSession(const std::string& session, int64_t worker) {
  const std::lock_guard lock(mutex_);
  sessions_[session] = worker;
  opened_.push_back(session);
  if (opened_.size() <= kMaxSessions) return;
  sessions_.erase(opened_.front());
  opened_.pop_front();
}

void WorkerSet::CloseSession(const std::string& session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

std::optional<WorkerSet::Lease> WorkerSet::AcquireFor(const std::string& session) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return std::nullopt;
  Entry* const entry = Find(found->second);
  return entry && entry->state.healthy ? LeaseOf(*entry) : Lease();
}

bool WorkerSet::HasOther(std::span<const int64_t> except, WorkerRole role) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const Entry& e) {
    return e.state.healthy && e.state.role == role &&
           std::ranges::find(except, e.state.id) == except.end();
  });
}

void WorkerSet::Release(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (Entry* const entry = Find(id)) --entry->state.open;
}

void WorkerSet::RequestSucceeded(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (Entry* const entry = Find(id)) entry->failed_in_a_row = 0;
}

bool WorkerSet::CheckSucceeded(int64_t id) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = Find(id);
  if (!entry) return false;
  entry->failed_in_a_row = 0;
  return SetHealth(*entry, true);
}

bool WorkerSet::Failed(int64_t id, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = Find(id);
  if (!entry) return false;
  ++entry->state.failures;
  entry->state.last_failure = why;
  return ++entry->failed_in_a_row >= failure_threshold_ && SetHealth(*entry, false);
}

bool WorkerSet::Refused(int64_t id, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = Find(id);
  if (!entry) return false;
  ++entry->state.failures;
  entry->state.last_failure = why;
  entry->failed_in_a_row = failure_threshold_;
  return SetHealth(*entry, false);
}

}  // namespace switchyard::route
