
#include <chrono>
#include <memory>

#include "core/duration.h"
#include "core/error.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/masked_ranks.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

milliseconds TimeoutOf(const MoeOptions& options) {
  return Milliseconds(options.elastic_timeout_seconds);
}

class Mooncake : public Dispatcher {
 public:
  explicit Mooncake(const DispatcherContext& context)
      : elastic_(context.comm, TimeoutOf(context.options)) {
    DispatcherContext with_mask = context;
    with_mask.elastic = &elastic_;
    exchange_ = DeepEpBackend().make(with_mask);
  }

  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
    ExchangeMemory memory = DeepEpBackend().memory(options, shape);
    memory.parts.push_back({"mooncake", 1, {{"cell", MaskedRanks::SymmetricBytes()}}});
    return memory;
  }

  bool scatters() const override { return exchange_->scatters(); }
  bool splits_mixed_batches() const override { return exchange_->splits_mixed_batches(); }
  std::vector<DispatchLayout> layouts() const override { return exchange_->layouts(); }
  int64_t MaxTokens(bool decode) const override { return exchange_->MaxTokens(decode); }
  int64_t MaxCombineTokens(bool decode) const override {
    return exchange_->MaxCombineTokens(decode);
  }
  std::span<const uint8_t> active_ranks() const override { return elastic_.mask(); }

  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override {
    return exchange_->InputRows(tokens, decode, handle);
  }
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override {
    exchange_->BeginDispatch(x, topk, decode, handle);
  }
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override {
    exchange_->BeginDispatchAgain(x, decode, handle);
  }
  bool Arrived(DispatchHandle* handle) override { return exchange_->Arrived(handle); }
  Dispatched EndDispatch(DispatchHandle* handle) override { return exchange_->EndDispatch(handle); }
  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override {
    return exchange_->OutputDestinations(experts, handle);
  }
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    exchange_->PrepareCombine(experts, handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    exchange_->BeginCombine(experts, handle);
  }
  int combine_parts() const override { return exchange_->combine_parts(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override {
    exchange_->BeginCombinePart(experts, part, handle);
  }
  void EndCombine(DispatchHandle* handle, float* y) override { exchange_->EndCombine(handle, y); }

 private:
  MaskedRanks elastic_;
  std::unique_ptr<Dispatcher> exchange_;
};

}  // namespace

DispatcherBackend MooncakeBackend() {
  DispatcherBackend backend =
      BackendOf<Dispatcher, Mooncake>("deepep that continues without lost ranks");
  backend.combines_by_rank = backend.combines_in_parts = true;
  backend.hosts = false;  // MaskedRanks needs memory that all ranks map
  return backend;
}

}  // namespace switchyard
