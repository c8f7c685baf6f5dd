// Sums of gradients over ranks that run beside the backward pass.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

#include "comm/device/symmetric_memory.h"
#include "train/parameter.h"

namespace switchyard::train {

// Sums on a thread of its own, in the order of Start; every rank starts the same ones in the same
// order. Owned by a rank; Start and Await are called by the rank's thread.
class GradientSums {
 public:
  using Parameters = std::span<Parameter<float>* const>;

  // `sum` adds up gradients over the ranks. It runs on the thread, so its collectives are made over
  // `arena`, which nothing else uses; they bring the deadlines. Where this is destroyed before all
  // sums are done, the arena is aborted.
  GradientSums(std::function<void(Parameters)> sum, std::shared_ptr<SharedArena> arena);
  ~GradientSums();

  // The gradients are not touched by others until Await has returned. `parameters` is borrowed
  // until then.
  void Start(Parameters parameters);
  // Until all are done. Rethrows what a sum threw.
  void Await();
  // The rank ends because of an error: ends the sums of all ranks with these words.
  void Abort(std::string_view reason) { arena_->AbortHere(reason); }

 private:
  void Run();

  const std::function<void(Parameters)> sum_;
  const std::shared_ptr<SharedArena> arena_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_: what waits, the one that is summed included; how it ended.
  std::deque<Parameters> waiting_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace switchyard::train
