// Updates and releases of the ranks' weights and memory, for HTTP endpoints.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// Parts of the ranks' memory, with SGLang's names as tags: "weights" and "kv_cache".
struct MemoryTags {
  bool weights = false;
  bool kv_cache = false;
  bool any() const { return weights || kv_cache; }
  bool operator==(const MemoryTags&) const = default;
};

// A checkpoint that replaces the present weights.
struct WeightUpdate {
  // If not empty: names of shared memory objects with tensors that replace those of the present
  // weights (OverlayCheckpoint). The other tensors stay, and `model_path` has no effect.
  std::vector<std::string> shared_memory;
  std::filesystem::path model_path;  // directory, GGUF file, or id in the hub cache
  std::string load_format;           // auto, safetensors, or empty: auto
  bool abort_all = false;            // aborts open requests; otherwise they finish first
  std::optional<std::string> version;
};

// The outcome of a change of the weights or the memory.
struct WeightsResult {
  std::string error;         // empty: the change succeeded. Otherwise nothing has changed
  bool unavailable = false;  // true with an `error`: the same request may succeed later
  size_t waiting = 0;        // requests that waited when the change had ended
  double seconds = 0;
};

struct WeightsState {
  std::filesystem::path model_path;  // checkpoint of the present weights
  std::string load_format;
  MemoryTags released;
  bool changing = false;  // an update, release or resume is in progress
};

// Implemented by the owner of the ranks. Thread-safe. `done` is called once: on another thread, or
// within the call. The functions return false, and never call `done`, if another change of the
// ranks is running. They throw Error kInvalid if the ranks do not support the change.
class RankWeights {
 public:
  using Done = std::function<void(const WeightsResult&)>;
  virtual ~RankWeights() = default;
  virtual WeightsState weights_state() const = 0;
  // Loads the checkpoint, whose configuration must equal the present one, in place of the present
  // weights. Open requests finish with the present weights, and requests that arrive meanwhile wait
  // for the new ones. The cache is then empty. If the ranks do not load, the present weights stay.
  // If the weights are released, Resume loads the checkpoint. Throws the errors of the checkpoint's
  // headers.
  virtual bool Update(const WeightUpdate& update, Done done) = 0;
  // Open requests finish, then the memory is released. Requests wait until it is resumed.
  virtual bool Release(MemoryTags tags, Done done) = 0;
  // Loads the weights again, and continues with an empty cache once nothing is released.
  virtual bool Resume(MemoryTags tags, Done done) = 0;
};

}  // namespace switchyard
