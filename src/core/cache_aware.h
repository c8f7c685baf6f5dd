// Chooses a worker for a request by the prefixes of earlier prompts, and by load. A worker is a
// server, or an attention group of an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// A radix tree over bytes, which stores the prompt prefixes that each worker has seen. Use it on
// one thread at a time.
//
// It approximates the prefix caches of the workers, which the caller cannot read. The method is
// that of SGLang's router (cache-aware load balancing): one tree for all workers, and each node has
// the set of its workers.
class PrefixTree {
 public:
  // `max_bytes`: limit of bytes(). If an insertion exceeds it, the prefixes that were not used for
  // the longest time are removed, down to three quarters of the limit.
  explicit PrefixTree(size_t max_bytes);
  ~PrefixTree();

  void Insert(std::string_view text, int64_t worker);

  struct Match {
    // All workers that have seen the prefix, the one that used it last first. Empty: no worker has
    // seen a prefix of the text.
    std::vector<int64_t> workers;
    size_t bytes = 0;  // length of the longest prefix that `workers` have seen
  };
  // Finds the longest prefix of `text` that any of `workers` has seen, in multiples of `unit`
  // bytes. Does not count as a use.
  Match Find(std::string_view text, std::span<const int64_t> workers, size_t unit = 1) const;

  void Remove(int64_t worker);  // removes all prefixes of the worker

  // Text of all nodes, and kNodeBytes for each node.
  size_t bytes() const { return bytes_; }
  size_t bytes_of(int64_t worker) const;  // bytes of text of the nodes that have this worker

 private:
  struct Node {
    std::string text;                                // label of the edge to this node
    std::map<char, std::unique_ptr<Node>> children;  // key: first byte of the child's text
    std::map<int64_t, uint64_t> workers;             // worker -> time of the last use
    uint64_t last_use() const;
  };

 public:
  // An estimate of the memory of a node without its text: the node, and its entries in maps.
  static constexpr size_t kNodeBytes = sizeof(Node) + 128;

 private:
  static size_t BytesOf(const Node& node) { return node.text.size() + kNodeBytes; }
  void Evict();
  void Drop(Node& node, int64_t worker);
  // Removes descendants without workers, and subtracts their bytes from bytes_.
  void RemoveEmpty(Node& node);

  const size_t max_bytes_;
  size_t bytes_ = 0;
  uint64_t now_ = 0;
  std::map<int64_t, size_t> bytes_of_;
  Node root_;
};

// Longer prompts are compared by their first bytes only. The caller truncates them.
inline constexpr size_t kMaxPromptKey = 1 << 16;

// Settings of cache_aware, with the names and defaults of SGLang's router.
struct CacheAwareOptions {
  // A prompt is sent to the worker that has seen the longest prefix of it, if that is at least this
  // fraction. If there is none, it is sent to the worker with the smallest tree.
  double cache_threshold = 0.3;
  // The open requests of workers are unbalanced if the largest number exceeds the smallest by more
  // than the absolute threshold, and by more than the relative factor. Then the worker with the
  // fewest open requests is selected.
  int64_t balance_abs_threshold = 64;
  double balance_rel_threshold = 1.5;
  size_t max_tree_bytes = size_t{1} << 26;
  // Not in SGLang's router. Of several workers that have seen the longest prefix, the one with the
  // fewest open requests is selected, instead of the one that used it last. If none has seen
  // enough, the fewest open requests count before the size of the tree.
  bool prefers_fewest_open = false;
  size_t match_unit = 1;  // prefixes are compared in multiples of so many bytes
};

// The choice, which is deterministic. Use it on one thread at a time.
class CacheAwareChoice {
 public:
  struct Candidate {
    int64_t worker;  // any number that identifies the worker's cache
    int64_t open;    // requests of the worker that have not ended
  };

  explicit CacheAwareChoice(const CacheAwareOptions& options)
      : options_(options), tree_(options.max_tree_bytes) {}

  // The worker for a prompt. `candidates` is not empty. For an empty prompt, it is the worker with
  // the fewest open requests. Of equal candidates, it is the first one.
  int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) const;
  // Call when the prompt is sent to the worker, also to one that was not chosen here.
  void Add(std::string_view prompt, int64_t worker) { tree_.Insert(prompt, worker); }
  void Forget(int64_t worker) { tree_.Remove(worker); }  // the worker's cache is empty

 private:
  const CacheAwareOptions options_;
  PrefixTree tree_;
};

}  // namespace switchyard
