#include "train/exchange/delayed_exchange.h"

#include <map>
#include <thread>
#include <utility>

namespace switchyard::train {
namespace {

using Clock = std::chrono::steady_clock;

class DelayedExchange : public RowExchange {
 public:
  DelayedExchange(std::unique_ptr<RowExchange> inner, const ExchangeDelay& delay)
      : inner_(std::move(inner)), delay_(delay) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void Open(std::span<const size_t> bytes, ExchangeHandle* h) override { inner_->Open(bytes, h); }
  void Post(ExchangeHandle* h) override {
    ready_[h] = Clock::now() + delay_.delay;
    inner_->Post(h);
    if (delay_.synchronous) std::this_thread::sleep_until(ready_[h]);
  }
  bool Arrived(ExchangeHandle* h) override {
    return Clock::now() >= ready_[h] && inner_->Arrived(h);
  }
  void Wait(ExchangeHandle* h) override {
    std::this_thread::sleep_until(ready_[h]);
    inner_->Wait(h);
  }
  void Release(ExchangeHandle* h) override {
    ready_.erase(h);
    inner_->Release(h);
  }

 private:
  const std::unique_ptr<RowExchange> inner_;
  const ExchangeDelay& delay_;
  std::map<const ExchangeHandle*, Clock::time_point> ready_;  // of exchanges in flight
};

}  // namespace

std::unique_ptr<RowExchange> MakeDelayedExchange(std::unique_ptr<RowExchange> inner,
                                                 const ExchangeDelay& delay) {
  return std::make_unique<DelayedExchange>(std::move(inner), delay);
}

}  // namespace switchyard::train
