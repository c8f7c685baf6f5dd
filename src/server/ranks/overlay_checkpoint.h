// A checkpoint whose tensors are partly in shared memory.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace switchyard {

// A directory with the files of another checkpoint and an index that assigns tensors to objects in
// shared memory. All files are links, so no weights are copied. The destructor removes the
// directory, but no file outside it.
class OverlayCheckpoint {
 public:
  // `base`: a directory with a checkpoint, which may be an overlay too. `base_has_weights`: false
  // if only its configuration counts; then the objects have all tensors. `objects`: names of POSIX
  // shared memory objects (shm_open) of this host. Each has the layout of a safetensors file, and
  // must not change as long as the overlay is served.
  //
  // Throws Error: ParameterError of shared_memory for an object that does not exist or is not
  // complete, and for a tensor that occurs twice, that `base` lacks, or that has another shape
  // there. kInvalid for a base that is a GGUF model. kResource if no directory can be made.
  static std::shared_ptr<const OverlayCheckpoint> Make(const std::filesystem::path& base,
                                                       bool base_has_weights,
                                                       std::span<const std::string> objects);
  ~OverlayCheckpoint();
  OverlayCheckpoint(const OverlayCheckpoint&) = delete;
  OverlayCheckpoint& operator=(const OverlayCheckpoint&) = delete;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  OverlayCheckpoint();

  std::filesystem::path dir_;
};

}  // namespace switchyard
