// Selects a worker for a request: by load, or by the prefixes of earlier prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace switchyard::route {

// A radix tree over bytes, which stores the prompt prefixes that each worker has seen.
//
// It approximates the prefix caches of the workers, which the router cannot read. The method is
// that of SGLang's router (cache-aware load balancing): one tree for all workers, and each node has
// the set of its workers.

// The radix tree. Use it on one thread at a time.
class PrefixTree {
 public:
  // `max_bytes`: limit of the stored text. If an insertion exceeds it, the prefixes that were not
  // used for the longest time are removed, down to three quarters of the limit.
  explicit PrefixTree(size_t max_bytes);
  ~PrefixTree();

  void Insert(std::string_view text, int64_t worker);

  struct Match {
    int64_t worker = -1;  // −1: no worker has seen a prefix of the text
    size_t bytes = 0;     // length of the longest prefix that `worker` has seen
  };
  // Finds the longest prefix of `text` that any of `workers` has seen. If several workers have seen
  // it, returns the worker that used the prefix last. Does not count as a use.
  Match Find(std::string_view text, std::span<const int64_t> workers) const;

  void Remove(int64_t worker);  // removes all prefixes of the worker

  size_t bytes() const { return bytes_; }  // text of all nodes
  size_t bytes_of(int64_t worker) const;   // bytes of text of the nodes that have this worker

 private:
  struct Node {
    std::string text;                                // label of the edge to this node
    std::map<char, std::unique_ptr<Node>> children;  // key: first byte of the child's text
    std::map<int64_t, uint64_t> workers;             // worker -> time of the last use
    uint64_t last_use() const;
  };

  void Evict();
  void Drop(Node& node, int64_t worker);
  // Removes descendants without workers, and subtracts the length of their text from bytes_.
  void RemoveEmpty(Node& node);

  const size_t max_bytes_;
  size_t bytes_ = 0;
  uint64_t now_ = 0;
  std::map<int64_t, size_t> bytes_of_;
  Node root_;
};

// The part of a request by which cache_aware recognizes common prefixes.

// Prompts longer than this are compared by their first bytes only.
inline constexpr size_t kMaxPromptKey = 1 << 16;

struct PromptInfo {
  std::string key;  // empty: no prompt was found
  // The request names a stored response, which only one worker has.
  bool names_stored_response = false;
  // The session that the request continues or closes (session_params.id of /generate, session_id of
  // /close_session); empty: none. Only the worker that opened the session has it.
  std::string session;
};

// Reads the prompt of a request to OpenAI's, Anthropic's or SGLang's endpoints: text, token ids, or
// tools and messages. If a request continues an earlier conversation, its key begins with the key
// of the earlier request. A body that is not a JSON object has no key; the worker rejects it.
PromptInfo ReadPrompt(std::string_view body);

// Policies that select the worker of a request.

struct Candidate {
  int64_t worker;  // worker id; ids of removed workers are never reused
  int64_t open;    // requests that this router has sent to it and that have not ended
};

// Settings of cache_aware, with the names and defaults of SGLang's router.
struct CacheAwareOptions {
  // A prompt is sent to a worker that has seen at least this fraction of it. If there is none, it
  // is sent to the worker with the smallest tree.
  double cache_threshold = 0.3;
  // The open requests of workers are unbalanced if the largest number exceeds the smallest by more
  // than the absolute threshold, and by more than the relative factor. Then the worker with the
  // fewest open requests is selected.
  int64_t balance_abs_threshold = 64;
  double balance_rel_threshold = 1.5;
  size_t max_tree_bytes = size_t{1} << 26;
};

// May be called from any thread.
class Policy {
 public:
  virtual ~Policy() = default;
  // `candidates` is not empty and ascends by worker. `prompt`: the text or tokens by which requests
  // with a common prefix are recognized; may be empty.
  virtual int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) = 0;
  virtual void Forget(int64_t worker) { static_cast<void>(worker); }  // it was removed or restarted
};

inline constexpr const char* kPolicies[] = {"cache_aware", "power_of_two", "round_robin", "random"};

// Error kInvalid for an unknown name. `seed` is for policies that draw random numbers.
std::unique_ptr<Policy> MakePolicy(const std::string& name, const CacheAwareOptions& options,
                                   uint64_t seed);

}  // namespace switchyard::route
