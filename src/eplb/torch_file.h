// Tensors of a file that torch.save wrote: a ZIP archive with a pickle that describes them and one
// stored entry for each storage (https://docs.pytorch.org/docs/stable/notes/serialization.html).
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "core/safetensors.h"

namespace switchyard {

// Whether the file starts like a ZIP archive.
bool IsTorchFile(const std::filesystem::path& path);

// The tensors in the dictionary that was saved, by their keys; other values are left out. Tensors
// whose elements are not stored in order (views with other strides) go to `scattered`. Only the
// archive's directory and the pickle are read, and no code of the pickle is run: it may build
// dictionaries, lists, tuples, numbers, texts and tensors. Error kInvalid names the file: damaged
// or compressed archives, other objects, tensors larger than their storage, big-endian files.
TensorEntries ReadTorchTensors(const std::filesystem::path& path, std::set<std::string>* scattered);

}  // namespace switchyard
