#include "train/app/options.h"

#include <numeric>

namespace switchyard::train {

Layout LayoutOf(const TrainingOptions& options, const ModelConfig& config) {
  Layout layout = options.layout;
  // CheckLayout rejects sizes below 1.
  if (layout.dp == 0 && layout.tp > 0 && layout.ep > 0) {
    layout.dp = std::lcm(layout.tp, layout.ep) / layout.tp;
  }
  CheckLayout(layout, config);
  return layout;
}

}  // namespace switchyard::train
