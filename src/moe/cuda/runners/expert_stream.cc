#include "moe/cuda/runners/expert_stream.h"

#include <cstring>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPage = 4096;  // whole pages are locked

// A buffer of `group` experts like those of the layer; its contents do not matter.
DeviceExperts BufferLike(const DeviceExperts& layer, const kernels::ExpertWeights& expert,
                         int group) {
  const std::vector<kernels::ExpertWeights> same(static_cast<size_t>(group), expert);
  return DeviceExperts(same, layer.arithmetic);
}

}  // namespace

PinnedExperts::PinnedExperts(const DeviceExperts& layer, int experts) : bytes_(layer.slot_bytes()) {
  for (const int64_t array : bytes_) stride_ += RoundUp(array, kAlignment);
  memory_ = Tensor::Empty(DType::kU8, {RoundUp(stride_ * experts, kPage)});
}

void PinnedExperts::Pin() {
  CHECK(!pinned());
  void* const memory = memory_.mutable_raw();
  const cudaError_t error =
      cudaHostRegister(memory, static_cast<size_t>(memory_.num_bytes()), cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Resource(
        "cannot lock {} bytes of host memory for the experts of a layer: {}; want --stream-experts "
        "off, or a higher limit of locked memory",
        memory_.num_bytes(), cudaGetErrorString(error));
  }
  lock_ = {memory, [](void* pages) {
             if (cudaHostUnregister(pages) != cudaSuccess) cudaGetLastError();
           }};
}

ExpertSlot PinnedExperts::Slot(int32_t expert) const {
  auto* at = static_cast<std::byte*>(const_cast<void*>(memory_.raw())) + stride_ * expert;
  ExpertSlot slot{};
  for (size_t i = 0; i < slot.size(); ++i) {
    if (bytes_[i] > 0) slot[i] = at;
    at += RoundUp(bytes_[i], kAlignment);
  }
  return slot;
}

ExpertStream::ExpertStream(const DeviceExperts& layer, const kernels::ExpertWeights& expert,
                           int group)
    : buffers_{BufferLike(layer, expert, group), BufferLike(layer, expert, group)} {
  CheckFits(layer);
}

void ExpertStream::CheckFits(const DeviceExperts& layer) const {
  const DeviceExperts& buffer = buffers_[0];
  const ExpertArithmetic &a = layer.arithmetic, &b = buffer.arithmetic;
  const bool same = a.input == b.input && a.output == b.output && a.weights == b.weights &&
                    a.tensor_cores == b.tensor_cores && a.packed == b.packed &&
                    a.gated == b.gated && layer.slot_bytes() == buffer.slot_bytes();
  if (!same)
    throw Invalid("--stream-experts: layers have experts of different formats or sizes; want off");
}

// Each call has an uploader of its own, with one thread, because callers convert in parallel.
void ExpertStream::Convert(const kernels::ExpertWeights& expert, const ExpertSlot& to) {
  std::unique_ptr<ExpertUploader> uploader;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      uploader = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!uploader)
    uploader = std::make_unique<ExpertUploader>(
        [](std::byte* slot, const void* from, int64_t bytes) {
          std::memcpy(slot, from, static_cast<size_t>(bytes));
        },
        /*threads=*/1);
  uploader->Upload(expert, buffers_[0].arithmetic, to);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(uploader));
}

void ExpertStream::EndConversions() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

void ExpertStream::Upload(int i, const PinnedExperts& from, std::span<const int32_t> experts) {
  const DeviceExperts& buffer = buffers_[i];
  CHECK_LE(std::ssize(experts), buffer.experts);
  Check(cudaStreamWaitEvent(copies_.get(), read_[i].get()), "wait for a buffer of experts");
  const ExpertSlotBytes bytes = buffer.slot_bytes();
  for (size_t e = 0; e < experts.size(); ++e) {
    const ExpertSlot source = from.Slot(experts[e]), to = buffer.Slot(static_cast<int>(e));
    for (size_t array = 0; array < bytes.size(); ++array)
      if (bytes[array] > 0)
        Check(cudaMemcpyAsync(to[array], source[array], static_cast<size_t>(bytes[array]),
                              cudaMemcpyHostToDevice, copies_.get()),
              "upload of streamed experts");
  }
  uploaded_[i].Record(copies_.get());
}

const DeviceExperts& ExpertStream::Await(int i, cudaStream_t stream) const {
  Check(cudaStreamWaitEvent(stream, uploaded_[i].get()), "wait for streamed experts");
  return buffers_[i];
}

}  // namespace switchyard::cuda
