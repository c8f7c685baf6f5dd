#include "moe/cuda/placement/expert_moves.h"

#include <utility>

#include "core/check.h"
#include "core/rounding.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // alignment of an array in a block

const DeviceExpert* Placed(const OwnedExpert& expert) {
  return static_cast<const DeviceExpert*>(expert.placed.get());
}

// Rows [row, row + rows) of a matrix that is stored at `data`, with block scales at `scales`.
WeightView View(const DeviceMatrix& matrix, const std::byte* data, const std::byte* scales,
                int64_t row, int64_t rows) {
  WeightView view{.format = matrix.type == ElementType::kFp8    ? WeightFormat::kFp8Block
                            : matrix.type == ElementType::kBF16 ? WeightFormat::kBF16
                                                                : WeightFormat::kF32,
                  .stored_k = matrix.k,
                  .row0 = row,
                  .row_step = 1,
                  .n = rows,
                  .k = matrix.k};
  view.data = data;
  view.scales = scales;
  return view;
}

}  // namespace

SpareExperts::SpareExperts(int64_t block_bytes, int blocks)
    : block_bytes_(block_bytes), memory_(static_cast<size_t>(block_bytes * blocks)) {
  for (int i = blocks - 1; i >= 0; --i) free_.push_back(memory_.data() + i * block_bytes);
}

std::byte* SpareExperts::Take() {
  const std::lock_guard lock(mutex_);
  CHECK(!free_.empty());
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

void SpareExperts::Return(std::byte* block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(block);
}

ExpertMover::ExpertMover(CudaDevice& device, int64_t block_bytes, int blocks)
    : device_(device),
      spare_(std::make_shared<SpareExperts>(block_bytes, blocks)),
      staging_(side_.get()),
      uploader_([this](std::byte* to, const void* from,
                       int64_t bytes) { staging_.CopyIn(to, from, static_cast<size_t>(bytes)); },
                /*threads=*/1) {}

int64_t ExpertMover::BlockBytes(const DeviceExperts& experts) {
  int64_t bytes = 0;
  for (const int64_t array : experts.slot_bytes()) bytes += RoundUp(array, kAlignment);
  return bytes;
}

ExpertSlot ExpertMover::BlockSlot(const DeviceExperts& layer, std::byte* block) const {
  CHECK_LE(BlockBytes(layer), spare_->block_bytes());
  ExpertSlot slot{};
  const ExpertSlotBytes bytes = layer.slot_bytes();
  for (size_t i = 0; i < slot.size(); ++i) {
    if (bytes[i] > 0) slot[i] = block;
    block += RoundUp(bytes[i], kAlignment);
  }
  return slot;
}

// Makes the side stream wait for the last Switch, whose copies may still read spare blocks.
void ExpertMover::WaitForSwitch() const {
  Check(cudaStreamWaitEvent(side_.get(), switched_.get()), "waiting for moved experts");
}

std::shared_ptr<DeviceExpert> ExpertMover::Upload(const DeviceExperts& layer,
                                                  const kernels::ExpertWeights& expert) {
  UseDevice(device_.index());
  const auto staged = std::make_shared<DeviceExpert>(spare_, spare_->Take());
  const std::lock_guard lock(mutex_);
  WaitForSwitch();
  uploader_.Upload(expert, layer.arithmetic, BlockSlot(layer, staged->block));
  side_.Synchronize();
  return staged;
}

void ExpertMover::Move(const DeviceExperts& layer, const ExpertSlot& from,
                       const ExpertSlot& to) const {
  const ExpertSlotBytes bytes = layer.slot_bytes();
  for (size_t i = 0; i < to.size(); ++i)
    if (bytes[i] > 0)
      Check(cudaMemcpyAsync(to[i], from[i], static_cast<size_t>(bytes[i]), cudaMemcpyDeviceToDevice,
                            device_.stream()),
            "move of an expert");
}

// Experts that change slots within the layer are copied to spare memory first, because their new
// slots may hold other experts that move.
std::vector<OwnedExpert> ExpertMover::Switch(const DeviceExperts& layer,
                                             std::span<const int32_t> logical,
                                             std::vector<OwnedExpert> experts) {
  const int moved = static_cast<int>(experts.size());
  CHECK_LE(moved, layer.experts);  // a dispatched shared expert may follow the moved experts
  CHECK_EQ(std::ssize(logical), moved);
  for (int slot = 0; slot < moved; ++slot) {
    OwnedExpert& expert = experts[slot];
    if (!expert.placed) expert.placed = Upload(layer, expert.weights);
    const int held = Placed(expert)->slot;
    if (held < 0 || logical[held] == logical[slot]) continue;
    auto copy = std::make_shared<DeviceExpert>(spare_, spare_->Take());
    Move(layer, layer.Slot(held), BlockSlot(layer, copy->block));
    expert.placed = std::move(copy);
  }
  for (int slot = 0; slot < moved; ++slot)
    if (const DeviceExpert& expert = *Placed(experts[slot]); expert.spare)
      Move(layer, BlockSlot(layer, expert.block), layer.Slot(slot));
  const std::lock_guard lock(mutex_);
  switched_.Record(device_.stream());
  return experts;
}

OwnedExpert ExpertMover::Download(const DeviceExperts& layer, int slot) {
  CHECK(!layer.arithmetic.packed);
  const auto host = std::make_shared<std::vector<std::byte>>(BlockBytes(layer));
  const ExpertSlotBytes bytes = layer.slot_bytes();
  const ExpertSlot from = layer.Slot(slot);
  ExpertSlot to{};
  std::byte* next = host->data();
  {
    const std::lock_guard lock(mutex_);
    WaitForSwitch();
    for (size_t i = 0; i < to.size(); ++i) {
      if (bytes[i] == 0) continue;
      to[i] = next;
      Check(cudaMemcpyAsync(next, from[i], static_cast<size_t>(bytes[i]), cudaMemcpyDeviceToHost,
                            side_.get()),
            "copy of an expert to the host");
      next += RoundUp(bytes[i], kAlignment);
    }
    side_.Synchronize();
  }
  OwnedExpert expert{.owner = host};
  kernels::ExpertWeights& w = expert.weights;
  const int64_t rows = layer.intermediate;
  const int64_t up_row = layer.arithmetic.gated ? rows : 0;  // else gate is the same matrix
  w.gate = View(layer.gate_up, to[kGateUp], to[kGateUpScales], 0, rows);
  w.up = View(layer.gate_up, to[kGateUp], to[kGateUpScales], up_row, rows);
  w.down = View(layer.down, to[kDown], to[kDownScales], 0, layer.hidden);
  for (WeightView* view : {&w.gate, &w.up, &w.down}) view->owner = host;
  if (to[kGateUpBias]) {
    w.gate_bias = reinterpret_cast<const float*>(to[kGateUpBias]);
    w.up_bias = w.gate_bias + up_row;
  }
  if (to[kDownBias]) w.down_bias = reinterpret_cast<const float*>(to[kDownBias]);
  return expert;
}

}  // namespace switchyard::cuda
