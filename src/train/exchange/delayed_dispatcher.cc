#include "train/exchange/delayed_dispatcher.h"

#include <thread>

namespace switchyard::train {

void DelayedDispatcher::Start(DispatchHandle* handle) const {
  handle->Get<State>().ready = Clock::now() + delay_.delay;
}

void DelayedDispatcher::Started(DispatchHandle* handle) const {
  if (delay_.synchronous) AwaitReady(handle);
}

void DelayedDispatcher::AwaitReady(DispatchHandle* handle) const {
  std::this_thread::sleep_until(handle->Get<State>().ready);
}

void DelayedDispatcher::BeginDispatch(const float* x, const TopK& topk, bool decode,
                                      DispatchHandle* handle) {
  Start(handle);
  inner_.BeginDispatch(x, topk, decode, handle);
  Started(handle);
}

void DelayedDispatcher::BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) {
  Start(handle);
  inner_.BeginDispatchAgain(x, decode, handle);
  Started(handle);
}

bool DelayedDispatcher::Arrived(DispatchHandle* handle) {
  return Clock::now() >= handle->Get<State>().ready && inner_.Arrived(handle);
}

Dispatched DelayedDispatcher::EndDispatch(DispatchHandle* handle) {
  AwaitReady(handle);
  return inner_.EndDispatch(handle);
}

void DelayedDispatcher::BeginCombine(const ExpertRows& experts, DispatchHandle* handle) {
  Start(handle);
  inner_.BeginCombine(experts, handle);
  Started(handle);
}

void DelayedDispatcher::EndCombine(DispatchHandle* handle, float* y) {
  AwaitReady(handle);
  inner_.EndCombine(handle, y);
}

const std::byte* DelayedDispatcher::EndCombineBySlot(DispatchHandle* handle) {
  AwaitReady(handle);
  return inner_.EndCombineBySlot(handle);
}

}  // namespace switchyard::train
