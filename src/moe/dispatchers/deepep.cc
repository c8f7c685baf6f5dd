#include "moe/dispatchers/deepep.h"

#include "core/error.h"
#include "moe/dispatchers/deepep_low_latency.h"
#include "moe/dispatchers/deepep_normal.h"

namespace switchyard {
namespace {

// Both modes side by side. A batch's mode is in its handle, so batches of both may be in flight.
class DeepEpAuto : public Dispatcher {
 public:
  explicit DeepEpAuto(const DispatcherContext& context) : normal_(context), low_latency_(context) {}
  static size_t SymmetricBytes(const MoeOptions& options, const MoeShape& shape,
                               const MeshShape& mesh) {
    return DeepEpNormal::SymmetricBytes(options, shape, mesh) +
           DeepEpLowLatency::SymmetricBytes(options, shape, mesh);
  }

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override {
    return {DispatchLayout::kNormal, DispatchLayout::kLowLatency};
  }
  int64_t MaxTokens(bool decode) const override {
    return decode ? low_latency_.MaxTokens(decode) : normal_.MaxTokens(decode);
  }

  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override {
    handle->layout = decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal;
    ModeOf(*handle).BeginDispatch(x, topk, decode, handle);
  }
  Dispatched EndDispatch(DispatchHandle* handle) override {
    return ModeOf(*handle).EndDispatch(handle);
  }
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    ModeOf(*handle).BeginCombine(experts, handle);
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

template <typename Mode>
DispatcherBackend BackendOf() {
  return {[](const DispatcherContext& context) { return std::make_unique<Mode>(context); },
          Mode::SymmetricBytes};
}

DispatcherBackend BackendOfMode(const std::string& mode) {
  if (mode == "normal") return BackendOf<DeepEpNormal>();
  if (mode == "low_latency") return BackendOf<DeepEpLowLatency>();
  if (mode == "auto") return BackendOf<DeepEpAuto>();
  throw Invalid("--deepep-mode {}: want normal, low_latency or auto", mode);
}

}  // namespace

DispatcherBackend DeepEpBackend() {
  return {[](const DispatcherContext& context) {
            return BackendOfMode(context.options.deepep_mode).make(context);
          },
          [](const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh) {
            return BackendOfMode(options.deepep_mode).symmetric_bytes(options, shape, mesh);
          }};
}

}  // namespace switchyard
