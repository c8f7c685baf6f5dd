// Calls of an engine in this process, and their results.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::offline {

// Log-probabilities of some positions, as arrays for other languages. An undefined value is NaN and
// an absent token is -1: the first position of a prompt has no log-probability.
struct Logprobs {
  std::vector<float> values;              // [n], of the token at each position
  std::vector<int32_t> tokens;            // [n]
  int64_t top = 0;                        // alternatives of each position (top_logprobs_num)
  std::vector<float> top_values;          // [n, top], best first
  std::vector<int32_t> top_tokens;        // [n, top]
  int64_t requested = 0;                  // tokens of token_ids_logprob
  std::vector<float> requested_values;    // [n, requested]
  std::vector<int32_t> requested_tokens;  // [n, requested]
};

// Logical experts of each computed position; −1: the layer or slot has no expert.
struct RoutedExperts {
  std::vector<int32_t> ids;  // [positions, layers, top_k]
  int64_t layers = 0, top_k = 0;
};

// Output of one generation. In a stream: all output so far, or with --stream-output the output
// since the previous result.
struct Result {
  int64_t index = 0;  // of the generation within the call
  std::string text;
  std::vector<int32_t> output_ids;
  // JSON object: SGLang's meta_info without log-probabilities and routed experts.
  std::string meta_info;
  bool finished = false;
  // With return_logprob. The prompt's are in the first result of a generation only.
  std::optional<Logprobs> input_logprobs, output_logprobs;
  // With return_routed_experts, in the last result.
  std::optional<RoutedExperts> routed_experts;
};

// A call in progress. One thread at a time. The destructor aborts a call that is still open.
class Call {
 public:
  virtual ~Call() = default;

  // Identifies the call in its Notifier.
  virtual uint64_t number() const = 0;
  // Waits until Take has something new to return. Returns whether it has.
  virtual bool Wait(std::chrono::milliseconds timeout) = 0;
  virtual bool HasNews() const = 0;
  virtual void Abort() = 0;
};

// A call of /generate.
class GenerateCall : public Call {
 public:
  virtual bool single() const = 0;  // one prompt that was not in a list, and n = 1
  // Whether all generations have finished and Take has returned their last results.
  virtual bool done() const = 0;
  // In a stream, the generations with new output; else all of them at once, after the last one has
  // finished. Throws the error of a generation that failed; the others are then aborted.
  virtual std::vector<Result> Take() = 0;
};

// A call of another route.
class RouteCall : public Call {
 public:
  virtual bool done() const = 0;
  // The part of the response's body that has arrived since the last call. For a response that is
  // not an event stream: all of it, once it is complete. Throws an Error for a status from 400 on.
  virtual std::string Take() = 0;
};

}  // namespace switchyard::offline
