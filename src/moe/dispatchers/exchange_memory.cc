#include "moe/dispatchers/exchange_memory.h"

#include <fmt/format.h>

#include "moe/backends.h"

namespace switchyard {
namespace {

std::string Size(size_t bytes) {
  constexpr double kKiB = 1024.0, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
  const auto b = static_cast<double>(bytes);
  if (b >= kGiB) return fmt::format("{:.2f} GiB", b / kGiB);
  if (b >= kMiB) return fmt::format("{:.1f} MiB", b / kMiB);
  if (b >= kKiB) return fmt::format("{:.1f} KiB", b / kKiB);
  return fmt::format("{} B", bytes);
}

template <typename Backend>
std::string DescribeBackend(const Backend& backend, const MoeOptions& options,
                            const ExchangeShape& exchange) {
  if (backend.memory) return backend.memory(options, exchange).Describe();
  return fmt::format("{}: {}", Size(backend.symmetric_bytes(options, exchange)),
                     options.a2a_backend);
}

}  // namespace

size_t ExchangeMemory::Part::slot_bytes() const {
  size_t total = 0;
  for (const Buffer& buffer : buffers) total += buffer.bytes;
  return total;
}

size_t ExchangeMemory::bytes() const {
  size_t total = 0;
  for (const Part& part : parts) total += part.slots * part.slot_bytes();
  return total;
}

std::string ExchangeMemory::Describe() const {
  std::string text = Size(bytes()) + ":";
  for (const Part& part : parts) {
    text += fmt::format("{} {} {} × (", &part == parts.data() ? "" : ",", part.name, part.slots);
    for (const Buffer& buffer : part.buffers)
      text += fmt::format("{}{} {}", &buffer == part.buffers.data() ? "" : ", ", buffer.name,
                          Size(buffer.bytes));
    text += ")";
  }
  return text;
}

std::string DescribeExchangeMemory(const MoeOptions& options, const MoeShape& shape,
                                   const MeshShape& mesh, const MoeBackends* backends) {
  const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
  const MoeBackends builtin = backends ? MoeBackends{} : BuiltinMoeBackends();
  const MoeBackends& all = backends ? *backends : builtin;
  const FusedBackend* fused = all.fused.FindIf(options.a2a_backend);
  return "exchange memory of each rank " +
         (fused ? DescribeBackend(*fused, options, exchange)
                : DescribeBackend(all.dispatchers.Find(options.a2a_backend), options, exchange));
}

}  // namespace switchyard
