#include "model/gguf/gguf_keys.h"

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int64_t kMaxLayers = 1 << 14;

}  // namespace

GgufKeys::GgufKeys(const GgufFiles& files) : files_(files) {
  const std::string* name = files.String("general.architecture");
  if (name == nullptr) throw Invalid("{}: general.architecture is missing", files.name());
  architecture_ = *name;
}

std::string GgufKeys::Key(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

int64_t GgufKeys::Int(std::string_view key) const {
  const auto value = files_.Int(Key(key));
  if (!value) throw Invalid("{}: {} is missing", files_.name(), Key(key));
  return *value;
}

void GgufKeys::Refuse(std::string_view key, std::string_view value) const {
  throw Invalid("{}: {} is {}, which is not supported for this architecture", files_.name(),
                Key(key), value);
}

int64_t GgufKeys::Layers() const {
  const int64_t blocks = Int("block_count"), drafts = IntOr("nextn_predict_layers", 0);
  if (drafts < 0 || blocks <= drafts || blocks > kMaxLayers)
    throw Invalid("{}: {} is {}; want {} to {}", files_.name(), Key("block_count"), blocks,
                  drafts + 1, kMaxLayers);
  return blocks - drafts;
}

bool GgufKeys::HasTensor(int64_t layer, std::string_view name) const {
  return files_.Find(fmt::format("blk.{}.{}", layer, name)) != nullptr;
}

int64_t GgufKeys::SizeOf(std::string_view name, size_t dimension) const {
  for (int64_t i = 0, layers = Layers(); i < layers; ++i) {
    const auto* tensor = files_.Find(fmt::format("blk.{}.{}", i, name));
    if (tensor != nullptr && dimension < tensor->shape.size()) return tensor->shape[dimension];
  }
  return 0;
}

}  // namespace switchyard
