#include "train/interleave.h"

namespace switchyard::train {

std::span<const InterleavedPhase> InterleavedOrder() {
  static constexpr InterleavedPhase kOrder[] = {
      {true, Phase::kFinish},    {true, Phase::kCombine},   {false, Phase::kAttention},
      {false, Phase::kDispatch}, {true, Phase::kShared},    {true, Phase::kExperts},
      {true, Phase::kDispatch},  {false, Phase::kShared},   {false, Phase::kExperts},
      {false, Phase::kCombine},  {true, Phase::kAttention}, {false, Phase::kFinish}};
  return kOrder;
}

template <typename T>
void RunInterleaved(Model<T>& model, Pass<T>* back, Pass<T>* forth) {
  for (int64_t layer = 0; layer < model.layers(); ++layer) {
    for (const auto& [backward, phase] : InterleavedOrder()) {
      if (backward) {
        model.Backward(model.layers() - 1 - layer, phase, back);
      } else {
        model.Forward(layer, phase, forth);
      }
    }
  }
}

template void RunInterleaved(Model<float>&, Pass<float>*, Pass<float>*);
template void RunInterleaved(Model<double>&, Pass<double>*, Pass<double>*);

}  // namespace switchyard::train
