// Policies that select the worker of a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace switchyard::route {

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
