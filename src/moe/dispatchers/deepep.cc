#include "core/error.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/deepep_low_latency.h"
#include "moe/dispatchers/deepep_normal.h"

namespace switchyard {
namespace {

// Selects the normal or the low-latency mode for each batch. The handle of a batch stores the mode,
// so batches of both modes may be in flight.
class DeepEpAuto : public Dispatcher {
 public:
  explicit DeepEpAuto(const DispatcherContext& context) : normal_(context), low_latency_(context) {}
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
    ExchangeMemory both = DeepEpNormal::Memory(options, shape);
    both.parts.push_back(DeepEpLowLatency::Memory(options, shape).parts.front());
    return both;
  }

  bool scatters() const override { return true; }
  bool splits_mixed_batches() const override { return true; }
  std::vector<DispatchLayout> layouts() const override {
    return {DispatchLayout::kNormal, DispatchLayout::kLowLatency};
  }
  int64_t MaxTokens(bool decode) const override {
    return decode ? low_latency_.MaxTokens(decode) : normal_.MaxTokens(decode);
  }
  int64_t MaxCombineTokens(bool decode) const override {
    return decode ? low_latency_.MaxCombineTokens(decode) : normal_.MaxCombineTokens(decode);
  }

  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override {
    handle->layout = decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal;
    return ModeOf(*handle).InputRows(tokens, decode, handle);
  }
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override {
    handle->layout = decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal;
    ModeOf(*handle).BeginDispatch(x, topk, decode, handle);
  }
  // Uses the mode of the first dispatch, because that mode has the routing.
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override {
    ModeOf(*handle).BeginDispatchAgain(x, decode, handle);
  }
  bool Arrived(DispatchHandle* handle) override { return ModeOf(*handle).Arrived(handle); }
  Dispatched EndDispatch(DispatchHandle* handle) override {
    return ModeOf(*handle).EndDispatch(handle);
  }
  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override {
    return ModeOf(*handle).OutputDestinations(experts, handle);
  }
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    ModeOf(*handle).PrepareCombine(experts, handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    ModeOf(*handle).BeginCombine(experts, handle);
  }
  int combine_parts() const override { return normal_.combine_parts(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override {
    ModeOf(*handle).BeginCombinePart(experts, part, handle);
  }
  void EndCombine(DispatchHandle* handle, float* y) override {
    ModeOf(*handle).EndCombine(handle, y);
  }

 private:
  Dispatcher& ModeOf(const DispatchHandle& handle) {
    if (handle.layout == DispatchLayout::kLowLatency) return low_latency_;
    return normal_;
  }

  DeepEpNormal normal_;
  DeepEpLowLatency low_latency_;
};

DispatcherBackend BackendOfMode(const std::string& mode) {
  if (mode == "normal") return BackendOf<Dispatcher, DeepEpNormal>("");
  if (mode == "low_latency") return BackendOf<Dispatcher, DeepEpLowLatency>("");
  if (mode == "auto") return BackendOf<Dispatcher, DeepEpAuto>("");
  throw Invalid("--deepep-mode {}: want normal, low_latency or auto", mode);
}

ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape) {
  return BackendOfMode(options.deepep_mode).memory(options, shape);
}

}  // namespace

DispatcherBackend DeepEpBackend() {
  return {
      .make =
          [](const DispatcherContext& context) {
            return BackendOfMode(context.options.deepep_mode).make(context);
          },
      .symmetric_bytes = [](const MoeOptions& options,
                            const ExchangeShape& shape) { return Memory(options, shape).bytes(); },
      .summary = "all-to-all through symmetric memory, modes normal, low_latency and auto",
      .memory = Memory,
      .combines_by_rank = true,
      .combines_in_parts = true};
}

}  // namespace switchyard
