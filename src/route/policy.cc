#include "route/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "core/bounded_json.h"
#include "core/error.h"

namespace switchyard::route {
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
  explicit CacheAware(const CacheAwareOptions& options) : choice_(options) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) override {
    const std::lock_guard lock(mutex_);
    const int64_t worker = choice_.Choose(candidates, prompt);
    choice_.Add(prompt, worker);
    return worker;
  }

  void Forget(int64_t worker) override {
    const std::lock_guard lock(mutex_);
    choice_.Forget(worker);
  }

 private:
  std::mutex mutex_;
  CacheAwareChoice choice_;
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
