#include "engine/kv_transfer/kv_mover.h"

#include "core/error.h"

namespace switchyard {
namespace {

[[noreturn]] void ThrowNoCuda() {
  throw Invalid("this build of switchyard has no CUDA: cannot reach KV caches of GPUs");
}

}  // namespace

std::shared_ptr<KvMover> MakeGpuMover() { ThrowNoCuda(); }
KvExport ExportGpuMemory(std::byte*, size_t) { ThrowNoCuda(); }
KvPublisher MakeGpuPublisher(std::span<std::byte>, kernels::Device&) { ThrowNoCuda(); }

}  // namespace switchyard
