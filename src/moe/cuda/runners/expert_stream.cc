#include "moe/cuda/runners/expert_stream.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/cpus.h"
#include "core/error.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

// A buffer of `group` experts like those of the layer; its contents do not matter.
DeviceExperts BufferLike(const DeviceExperts& layer, const kernels::ExpertWeights& expert,
                         int group) {
  const std::vector<kernels::ExpertWeights> same(static_cast<size_t>(group), expert);
  return DeviceExperts(same, layer.arithmetic);
}

}  // namespace

PinnedExperts::PinnedExperts(const DeviceExperts& layer, int experts) : bytes_(layer.slot_bytes()) {
  for (const int64_t array : bytes_) stride_ += Aligned(array);
  memory_ = PinnedMemory(static_cast<size_t>(stride_ * experts));
}

ExpertSlot PinnedExperts::Slot(int32_t expert) const {
  std::byte* at = memory_.as<std::byte>() + stride_ * expert;
  ExpertSlot slot{};
  for (size_t i = 0; i < slot.size(); ++i) {
    if (bytes_[i] > 0) slot[i] = at;
    at += Aligned(bytes_[i]);
  }
  return slot;
}

ExpertStream::ExpertStream(const DeviceExperts& layer, const kernels::ExpertWeights& expert,
                           int group)
    : buffers_{BufferLike(layer, expert, group), BufferLike(layer, expert, group)},
      uploader_([](std::byte* to, const void* from,
                   int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); },
                std::clamp(AllowedCpuCount(), 1, 8)) {
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

void ExpertStream::Convert(const kernels::ExpertWeights& expert, const ExpertSlot& to) {
  uploader_.Upload(expert, buffers_[0].arithmetic, to);
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
