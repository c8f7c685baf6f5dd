#include "moe/dispatchers/none.h"

#include "kernels/ops.h"
#include "moe/combine.h"
#include "moe/expert_map.h"

namespace switchyard {
namespace {

// Every rank has every token, computes the experts it holds and sums their outputs; the layer's
// all-reduce adds the ranks' sums. Rows are rounded to the dtype in flight all the same, so that on
// one rank the result is bit for bit that of the backends that move rows. On several it is equal
// within rounding: the all-reduce adds by rank, not by slot.
class NoneDispatcher : public Dispatcher {
 public:
  explicit NoneDispatcher(const DispatcherContext& context)
      : pool_(context.pool),
        hidden_(context.shape.hidden),
        max_tokens_(context.shape.max_tokens),
        row_dtype_(context.options.row_dtype),
        ep_rank_(context.comm.mesh.ep_rank()),
        experts_(context.shape.num_experts, context.comm.mesh.ep()) {}

  bool scatters() const override { return false; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kStandard}; }
  int64_t MaxTokens(bool) const override { return max_tokens_; }

  void BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) override {
    handle->layout = DispatchLayout::kStandard;
    handle->topk = &topk;
    handle->x = x;
    if (row_dtype_ != DType::kF32) {
      const int64_t count = topk.tokens * hidden_;
      handle->rounded.assign(x, x + count);
      kernels::RoundTo(row_dtype_, handle->rounded.data(), count, pool_);
      handle->x = handle->rounded.data();
    }
    handle->local_ids.resize(topk.ids.size());
    for (size_t i = 0; i < topk.ids.size(); ++i)
      handle->local_ids[i] = experts_.LocalIdOn(ep_rank_, topk.ids[i]);
  }

  Dispatched EndDispatch(DispatchHandle* handle) override {
    return {.layout = DispatchLayout::kStandard,
            .rows = reinterpret_cast<const std::byte*>(handle->x),
            .dtype = DType::kF32,
            .num_rows = handle->topk->tokens,
            .topk_ids = handle->local_ids.data(),
            .topk_stride = handle->topk->k,
            .k = handle->topk->k};
  }

  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override {
    handle->outputs = experts;
    kernels::RoundTo(row_dtype_, experts.rows, experts.num_rows * hidden_, pool_);
  }

  void EndCombine(DispatchHandle* handle, float* y) override {
    const TopK& topk = *handle->topk;
    const auto row_of = [&, outputs = handle->outputs](int64_t t, int j) -> const std::byte* {
      const int32_t r = outputs.position[t * topk.k + j];
      return r < 0 ? nullptr : reinterpret_cast<const std::byte*>(outputs.rows + r * hidden_);
    };
    SumTopK(topk, DType::kF32, hidden_, row_of, pool_, y);
  }

 private:
  ThreadPool& pool_;
  const int64_t hidden_, max_tokens_;
  const DType row_dtype_;
  const int ep_rank_;
  const ExpertMap experts_;
};

size_t NoSymmetricBytes(const MoeOptions&, const MoeShape&, const MeshShape&) { return 0; }

}  // namespace

DispatcherBackend NoneBackend() {
  return {
      [](const DispatcherContext& context) { return std::make_unique<NoneDispatcher>(context); },
      NoSymmetricBytes};
}

}  // namespace switchyard
