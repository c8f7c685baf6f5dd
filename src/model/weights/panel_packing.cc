#include "model/weights/panel_packing.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "quant/panels.h"

namespace switchyard {
namespace {

constexpr int64_t kRowsOfJob = 8 * kPanelHeight;

}  // namespace

WeightView PackLater(CheckpointReader& in, WeightView view, std::vector<MappedRange> stored,
                     PackPanelRows pack) {
  if (!in.read_data() || view.n == 0 || view.k == 0) return view;
  const Slabs::Piece piece = in.slabs().Allocate(
      static_cast<size_t>(PanelMatrixBytes(view.format, view.group_size, view.n, view.k)));
  view.data = piece.data;
  view.owner = piece.owner;
  const int64_t row_bytes = PanelBytes(view.format, view.group_size, view.k) / kPanelHeight;
  struct Rest {
    std::atomic<int64_t> jobs;
    std::vector<MappedRange> stored;
    PackPanelRows pack;
  };
  const auto rest = std::make_shared<Rest>();
  rest->jobs = CeilDiv(view.n, kRowsOfJob);
  rest->stored = std::move(stored);
  rest->pack = std::move(pack);
  for (int64_t first = 0; first < view.n; first += kRowsOfJob) {
    const Range rows = {first, std::min(view.n, first + kRowsOfJob)};
    in.Later(static_cast<size_t>(rows.size() * row_bytes), [rest, rows, panels = piece.data] {
      rest->pack(rows, panels);
      // All jobs may read the same pages: some methods store the columns of all rows together.
      if (rest->jobs.fetch_sub(1) != 1) return;
      for (const MappedRange& range : rest->stored) DropPages(range);
    });
  }
  return view;
}

}  // namespace switchyard
