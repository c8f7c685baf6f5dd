#include "server/front/sessions.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/api/json_body.h"

namespace switchyard {
namespace {

std::string NewId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

}  // namespace

Sessions::Turn::~Turn() {
  if (!ended_) sessions_.Forget(session_, rid_, serial_);
}

void Sessions::Turn::End(const std::vector<int32_t>& output) {
  ended_ = true;
  sessions_.Keep(session_, rid_, serial_, output);
}

std::string Sessions::Open(std::string id, std::optional<std::chrono::duration<double>> timeout) {
  std::lock_guard lock(mutex_);
  CloseOverdue();
  if (sessions_.size() >= kMaxSessions)
    throw Error(ErrorKind::kBusy, fmt::format("{} sessions are open already", sessions_.size()),
                "close some with POST /close_session");
  if (id.empty()) id = NewId();
  if (!sessions_.try_emplace(id, Session{.timeout = timeout}).second)
    throw InvalidField("session_id", "session_id {} is the id of an open session", id);
  return id;
}

bool Sessions::Close(const std::string& id) {
  std::lock_guard lock(mutex_);
  CloseOverdue();
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return false;
  for (const auto& [rid, node] : found->second.nodes)
    tokens_ -= node.prompt.size() + node.output.size();
  sessions_.erase(found);
  return true;
}

void Sessions::CloseOverdue() {
  const auto now = Clock::now();
  std::erase_if(sessions_, [&](const auto& entry) {
    const Session& session = entry.second;
    if (!session.timeout || now - session.used < *session.timeout) return false;
    for (const auto& [rid, node] : session.nodes)
      tokens_ -= node.prompt.size() + node.output.size();
    return true;
  });
}

Sessions::Session& Sessions::Find(const std::string& id) {
  CloseOverdue();
  const auto found = sessions_.find(id);
  if (found == sessions_.end())
    throw InvalidField("session_params.id",
                       "there is no open session with session_params.id {}: open one with POST "
                       "/open_session",
                       id);
  found->second.used = Clock::now();
  return found->second;
}

const Sessions::Node* Sessions::Parent(const Session& session, const SessionParams& params) const {
  if (!params.rid) return nullptr;
  const auto found = session.nodes.find(*params.rid);
  if (found == session.nodes.end())
    throw InvalidField("session_params.rid",
                       "session_params.rid {} is not a request of the session", *params.rid);
  if (!found->second.ended && !params.replace)
    throw InvalidField("session_params.rid",
                       "session_params.rid {} is a request that has not ended: wait for its end, "
                       "or set replace",
                       *params.rid);
  return &found->second;
}

std::vector<int32_t> Sessions::Context(const SessionParams& params) {
  std::lock_guard lock(mutex_);
  const Node* const parent = Parent(Find(params.id), params);
  if (!parent) return {};
  std::vector<int32_t> tokens = parent->prompt;
  if (!params.drop_previous_output)
    tokens.insert(tokens.end(), parent->output.begin(), parent->output.end());
  if (params.offset > 0 && params.offset < std::ssize(tokens))
    tokens.resize(static_cast<size_t>(params.offset));
  return tokens;
}

std::shared_ptr<Sessions::Turn> Sessions::Begin(const SessionParams& params, const std::string& rid,
                                                std::vector<int32_t> prompt,
                                                std::vector<std::string>* replaced) {
  std::lock_guard lock(mutex_);
  Session& session = Find(params.id);
  Parent(session, params);
  if (params.replace && params.rid) {
    if (!session.nodes.at(*params.rid).ended) replaced->push_back(*params.rid);
    RemoveChildren(session, *params.rid, replaced);
  } else if (params.replace) {
    while (!session.nodes.empty())
      Remove(session, std::string(session.nodes.begin()->first), replaced);
  }
  if (session.nodes.contains(rid))
    throw InvalidField("rid", "rid {} is the name of a request of the session already", rid);
  if (tokens_ + prompt.size() > kMaxTokens)
    throw Error(ErrorKind::kBusy, fmt::format("the sessions have {} tokens already", tokens_),
                "close some with POST /close_session");
  tokens_ += prompt.size();
  Node& node = session.nodes[rid];
  node.serial = ++last_serial_;
  node.parent = params.rid.value_or("");
  node.prompt = std::move(prompt);
  return std::make_shared<Turn>(*this, params.id, rid, node.serial);
}

void Sessions::Remove(Session& session, const std::string& rid, std::vector<std::string>* running) {
  RemoveChildren(session, rid, running);
  const Node& node = session.nodes.at(rid);
  if (!node.ended) running->push_back(rid);
  tokens_ -= node.prompt.size() + node.output.size();
  session.nodes.erase(rid);
}

// Not recursive over the depth of the tree, because a long chat is a deep tree.
void Sessions::RemoveChildren(Session& session, const std::string& rid,
                              std::vector<std::string>* running) {
  std::vector<std::string> parents = {rid};
  while (!parents.empty()) {
    const std::string parent = std::move(parents.back());
    parents.pop_back();
    for (auto it = session.nodes.begin(); it != session.nodes.end();) {
      if (it->second.parent != parent) {
        ++it;
        continue;
      }
      if (!it->second.ended) running->push_back(it->first);
      tokens_ -= it->second.prompt.size() + it->second.output.size();
      parents.push_back(it->first);
      it = session.nodes.erase(it);
    }
  }
}

void Sessions::Forget(const std::string& session, const std::string& rid, uint64_t serial) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const auto node = found->second.nodes.find(rid);
  if (node == found->second.nodes.end() || node->second.serial != serial) return;
  tokens_ -= node->second.prompt.size() + node->second.output.size();
  found->second.nodes.erase(node);
  // A request that replaced this one has this one as its parent. It stores its whole prompt itself,
  // so it remains, without a parent.
  for (auto& [name, other] : found->second.nodes)
    if (other.parent == rid) other.parent.clear();
}

void Sessions::Keep(const std::string& session, const std::string& rid, uint64_t serial,
                    const std::vector<int32_t>& output) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  found->second.used = Clock::now();
  const auto node = found->second.nodes.find(rid);
  if (node == found->second.nodes.end() || node->second.serial != serial) return;
  node->second.output = output;
  node->second.ended = true;
  tokens_ += output.size();
}

size_t Sessions::open() const {
  std::lock_guard lock(mutex_);
  return sessions_.size();
}

size_t Sessions::tokens() const {
  std::lock_guard lock(mutex_);
  return tokens_;
}

}  // namespace switchyard
