#include "engine/kv_transfer/kv_mover.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "core/check.h"

namespace switchyard {

bool KvCopy::Append(const KvCopy& next) {
  if (rows == 1 && next.rows == 1 && to + bytes == next.to && from + bytes == next.from) {
    bytes += next.bytes;
    return true;
  }
  if (to_stride == 0 || bytes != next.bytes || to_stride != next.to_stride ||
      from_stride != next.from_stride || to + rows * to_stride != next.to ||
      from + rows * from_stride != next.from)
    return false;
  rows += next.rows;
  return true;
}

void KvCopy::Run() const {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * to_stride, from + row * from_stride, static_cast<size_t>(bytes));
}

struct KvExportSlot::Content {
  std::atomic<uint32_t> set;
  KvExport memory;
};

// The progress has the bytes before.
KvExportSlot::KvExportSlot(std::span<std::byte> memory) {
  constexpr size_t kOffset = 256;
  static_assert(std::is_trivially_copyable_v<KvExport>);
  CHECK_GE(memory.size(), kOffset + sizeof(Content));
  content_ = reinterpret_cast<Content*>(memory.data() + kOffset);
  CHECK_EQ(reinterpret_cast<uintptr_t>(content_) % alignof(Content), 0u);
}

void KvExportSlot::Clear() { content_->set.store(0, std::memory_order_release); }

void KvExportSlot::Set(const KvExport& memory) {
  content_->memory = memory;
  content_->set.store(1, std::memory_order_release);
}

std::optional<KvExport> KvExportSlot::Get() const {
  if (content_->set.load(std::memory_order_acquire) == 0) return std::nullopt;
  return content_->memory;
}

std::shared_ptr<std::byte> TransferBuffer(KvMover* mover, size_t bytes) {
  if (mover) return mover->Buffer(bytes);
  constexpr auto kAlignment = std::align_val_t{64};
  return {static_cast<std::byte*>(::operator new(bytes, kAlignment)),
          [](std::byte* memory) { ::operator delete(memory, kAlignment); }};
}

}  // namespace switchyard
