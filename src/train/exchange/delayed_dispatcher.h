// Emulates a slow network for tests and benchmarks.
#pragma once

#include <chrono>

#include "moe/dispatchers/dispatcher.h"

namespace switchyard::train {

struct ExchangeDelay {
  std::chrono::nanoseconds delay{0};
  // True if Begin* of the dispatcher waits for the rows. The delay then applies to Begin*.
  bool synchronous = false;
};

// Wraps a dispatcher of training. All rows of a batch arrive no earlier than `delay` after Begin*
// of this rank. End* sleeps for the remaining time, so the cores are free for other ranks.
// Computation between Begin* and End* hides the delay. Borrows both arguments; the delay is read at
// each Begin*.
class DelayedDispatcher : public Dispatcher {
 public:
  DelayedDispatcher(Dispatcher& inner, const ExchangeDelay& delay) : inner_(inner), delay_(delay) {}

  bool scatters() const override { return inner_.scatters(); }
  std::vector<DispatchLayout> layouts() const override { return inner_.layouts(); }
  int64_t MaxTokens(bool decode) const override { return inner_.MaxTokens(decode); }
  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override {
    return inner_.InputRows(tokens, decode, handle);
  }
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override;
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override;
  bool Arrived(DispatchHandle* handle) override;
  Dispatched EndDispatch(DispatchHandle* handle) override;
  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override {
    return inner_.OutputDestinations(experts, handle);
  }
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    inner_.PrepareCombine(experts, handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void EndCombine(DispatchHandle* handle, float* y) override;
  const std::byte* EndCombineBySlot(DispatchHandle* handle) override;
  void ReleaseOutputs(DispatchHandle* handle) override { inner_.ReleaseOutputs(handle); }

 private:
  using Clock = std::chrono::steady_clock;

  struct State {
    Clock::time_point ready;  // earliest end of the exchange in flight
  };
  // Begin* calls Start before the call of the wrapped dispatcher, and Started after it.
  void Start(DispatchHandle* handle) const;
  void Started(DispatchHandle* handle) const;
  void AwaitReady(DispatchHandle* handle) const;  // called in End*

  Dispatcher& inner_;
  const ExchangeDelay& delay_;
};

}  // namespace switchyard::train
