#include "route/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "core/bounded_json.h"
#include "core/error.h"

namespace switchyard::route {
namespace {

size_t CommonLength(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
}

}  // namespace

uint64_t PrefixTree::Node::last_use() const {
  uint64_t last = 0;
  for (const auto& [worker, time] : workers) last = std::max(last, time);
  return last;
}

PrefixTree::PrefixTree(size_t max_bytes) : max_bytes_(max_bytes) {}

PrefixTree::~PrefixTree() {
  // Moves all nodes to one list, because a recursive destructor could exceed the stack.
  std::vector<std::unique_ptr<Node>> nodes;
  const auto take = [&](Node& node) {
    for (auto& [first, child] : node.children) nodes.push_back(std::move(child));
    node.children.clear();
  };
  take(root_);
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    take(*node);
  }
}

void PrefixTree::Insert(std::string_view text, int64_t worker) {
  ++now_;
  Node* node = &root_;
  while (!text.empty()) {
    std::unique_ptr<Node>& slot = node->children[text.front()];
    if (!slot) {
      slot = std::make_unique<Node>();
      slot->text = text;
      bytes_ += text.size();
    }
    const size_t common = CommonLength(slot->text, text);
    if (common < slot->text.size()) {  // split the edge
      auto upper = std::make_unique<Node>();
      upper->text = slot->text.substr(0, common);
      upper->workers = slot->workers;
      slot->text.erase(0, common);
      const char first = slot->text.front();
      upper->children[first] = std::move(slot);
      slot = std::move(upper);
    }
    node = slot.get();
    if (node->workers.insert_or_assign(worker, now_).second) bytes_of_[worker] += common;
    text.remove_prefix(common);
  }
  if (bytes_ > max_bytes_) Evict();
}

PrefixTree::Match PrefixTree::Find(std::string_view text, std::span<const int64_t> workers) const {
  Match match;
  size_t bytes = 0;
  const Node* node = &root_;
  while (!text.empty()) {
    const auto child = node->children.find(text.front());
    if (child == node->children.end()) break;
    node = child->second.get();
    const size_t common = CommonLength(node->text, text);
    bytes += common;
    uint64_t latest = 0;
    for (const int64_t worker : workers) {
      const auto use = node->workers.find(worker);
      if (use == node->workers.end() || use->second <= latest) continue;
      latest = use->second;
      match = {.worker = worker, .bytes = bytes};
    }
    // If none of `workers` has this node, none has its descendants either, so the search ends.
    if (latest == 0 || common < node->text.size()) break;
    text.remove_prefix(common);
  }
  return match;
}

void PrefixTree::Drop(Node& node, int64_t worker) {
  if (node.workers.erase(worker) == 0) return;
  bytes_of_[worker] -= node.text.size();
}

void PrefixTree::RemoveEmpty(Node& node) {
  std::vector<Node*> open = {&node};
  std::vector<std::unique_ptr<Node>> removed;
  const auto take_empty = [&](Node& from, bool all) {
    for (auto child = from.children.begin(); child != from.children.end();) {
      if (!all && !child->second->workers.empty()) {
        ++child;
        continue;
      }
      bytes_ -= child->second->text.size();
      removed.push_back(std::move(child->second));
      child = from.children.erase(child);
    }
  };
  while (!open.empty()) {
    Node* const next = open.back();
    open.pop_back();
    take_empty(*next, false);
    for (auto& [first, child] : next->children) open.push_back(child.get());
  }
  while (!removed.empty()) {
    const std::unique_ptr<Node> last = std::move(removed.back());
    removed.pop_back();
    take_empty(*last, true);
  }
}

void PrefixTree::Remove(int64_t worker) {
  std::vector<Node*> open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    Drop(*node, worker);
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  bytes_of_.erase(worker);
  RemoveEmpty(root_);
}

size_t PrefixTree::bytes_of(int64_t worker) const {
  const auto found = bytes_of_.find(worker);
  return found == bytes_of_.end() ? 0 : found->second;
}

void PrefixTree::Evict() {
  // A use of a node is also a use of all its ancestors, so no node has a later last use than its
  // parent. If a node stays because its last use is recent, its parent therefore stays too.
  std::vector<std::pair<uint64_t, size_t>> uses;  // (last use, bytes of text) of each node
  std::vector<Node*> open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (node != &root_) uses.emplace_back(node->last_use(), node->text.size());
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  std::ranges::sort(uses);
  uint64_t until = 0;
  size_t left = bytes_;
  for (const auto& [use, bytes] : uses) {
    if (left <= max_bytes_ / 4 * 3) break;
    until = use;
    left -= bytes;
  }
  open = {&root_};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    std::vector<int64_t> old;
    for (const auto& [worker, use] : node->workers)
      if (use <= until) old.push_back(worker);
    for (const int64_t worker : old) Drop(*node, worker);
    for (auto& [first, child] : node->children) open.push_back(child.get());
  }
  RemoveEmpty(root_);
}

namespace {

using nlohmann::json;

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendIds(const json& ids, std::string& key) {
  for (const json& id : ids) {
    if (key.size() >= kMaxPromptKey) return;
    if (!id.is_number_integer()) continue;
    const auto value = static_cast<uint32_t>(id.get<int64_t>());
    for (int shift = 0; shift < 32; shift += 8) key += static_cast<char>(value >> shift & 0xff);
  }
}

// Appends a prompt: a text, a list of token ids or a list of messages. Of a list of prompts, only
// the first one is appended.
void AppendPrompt(const json& value, std::string& key) {
  if (value.is_string()) {
    key += value.get_ref<const std::string&>();
  } else if (value.is_array() && !value.empty()) {
    if (value.front().is_number()) {
      AppendIds(value, key);
    } else if (value.front().is_object()) {
      for (const json& message : value) {
        if (key.size() >= kMaxPromptKey) return;
        key += Dump(message);
      }
    } else {
      AppendPrompt(value.front(), key);
    }
  }
}

}  // namespace

PromptInfo ReadPrompt(std::string_view body) {
  PromptInfo info;
  json request;
  try {
    request = ParseBoundedJson(body, "body");
  } catch (const Error&) {
    return info;
  }
  if (!request.is_object()) return info;
  const auto field = [&](const char* name) -> const json* {
    const auto found = request.find(name);
    return found == request.end() || found->is_null() ? nullptr : &*found;
  };
  const json* const params = field("session_params");
  if (params && params->is_object()) {
    const auto id = params->find("id");
    if (id != params->end() && id->is_string()) info.session = id->get<std::string>();
  } else if (const json* const id = field("session_id"); id && id->is_string()) {
    info.session = id->get<std::string>();
  }
  info.names_stored_response = field("previous_response_id") != nullptr;
  // Models have separate caches.
  if (const json* const model = field("model"); model && model->is_string())
    info.key = model->get_ref<const std::string&>() + '\n';
  const size_t without_prompt = info.key.size();
  // Templates write tools and system texts before the messages.
  for (const char* name : {"tools", "system", "instructions"})
    if (const json* const value = field(name)) info.key += Dump(*value);
  for (const char* name : {"messages", "input", "input_ids", "text", "prompt"})
    if (const json* const value = field(name)) AppendPrompt(*value, info.key);
  if (info.key.size() == without_prompt) info.key.clear();
  if (info.key.size() > kMaxPromptKey) info.key.resize(kMaxPromptKey);
  return info;
}

namespace {

const Candidate& FewestOpen(std::span<const Candidate> candidates) {
  return *std::ranges::min_element(candidates, {}, &Candidate::open);
}

class RoundRobin : public Policy {
 public:
  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    const std::lock_guard lock(mutex_);
    const auto next = std::ranges::upper_bound(candidates, last_, {}, &Candidate::worker);
    return last_ = (next == candidates.end() ? candidates.front() : *next).worker;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = -1;
};

// The less loaded of two random workers (Mitzenmacher, "The power of two choices in randomized load
// balancing", 2001).
class PowerOfTwo : public Policy {
 public:
  explicit PowerOfTwo(uint64_t seed) : random_(seed) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    if (candidates.size() == 1) return candidates.front().worker;
    const std::lock_guard lock(mutex_);
    const size_t first = random_() % candidates.size();
    size_t second = random_() % (candidates.size() - 1);
    second += second >= first;
    const Candidate &a = candidates[first], &b = candidates[second];
    return (b.open < a.open ? b : a).worker;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

class Random : public Policy {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    const std::lock_guard lock(mutex_);
    return candidates[random_() % candidates.size()].worker;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

class CacheAware : public Policy {
 public:
  explicit CacheAware(const CacheAwareOptions& options)
      : options_(options), tree_(options.max_tree_bytes) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) override {
    const std::lock_guard lock(mutex_);
    const int64_t worker = Best(candidates, prompt);
    tree_.Insert(prompt, worker);
    return worker;
  }

  void Forget(int64_t worker) override {
    const std::lock_guard lock(mutex_);
    tree_.Remove(worker);
  }

 private:
  int64_t Best(std::span<const Candidate> candidates, std::string_view prompt) const {
    const Candidate& fewest = FewestOpen(candidates);
    const int64_t most = std::ranges::max(candidates, {}, &Candidate::open).open;
    if (most - fewest.open > options_.balance_abs_threshold &&
        static_cast<double>(most) >
            options_.balance_rel_threshold * static_cast<double>(fewest.open))
      return fewest.worker;
    if (prompt.empty()) return fewest.worker;
    std::vector<int64_t> workers;
    for (const Candidate& candidate : candidates) workers.push_back(candidate.worker);
    const PrefixTree::Match match = tree_.Find(prompt, workers);
    if (match.worker >= 0 && static_cast<double>(match.bytes) >=
                                 options_.cache_threshold * static_cast<double>(prompt.size()))
      return match.worker;
    // The worker with the smallest tree. Among trees of equal size (all are empty at first), the
    // worker with the fewest open requests.
    return std::ranges::min_element(
               candidates, {},
               [&](const Candidate& c) { return std::pair(tree_.bytes_of(c.worker), c.open); })
        ->worker;
  }

  const CacheAwareOptions options_;
  std::mutex mutex_;
  PrefixTree tree_;
};

}  // namespace

std::unique_ptr<Policy> MakePolicy(const std::string& name, const CacheAwareOptions& options,
                                   uint64_t seed) {
  if (name == "cache_aware") return std::make_unique<CacheAware>(options);
  if (name == "power_of_two") return std::make_unique<PowerOfTwo>(seed);
  if (name == "round_robin") return std::make_unique<RoundRobin>();
  if (name == "random") return std::make_unique<Random>(seed);
  throw Invalid("--policy {}: want one of {}", name, fmt::join(kPolicies, ", "));
}

}  // namespace switchyard::route
