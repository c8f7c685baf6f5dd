// Reads tensors of a file written by torch.save: a ZIP archive with a pickle that describes the
// tensors, and one uncompressed entry per storage
// (https://docs.pytorch.org/docs/stable/notes/serialization.html).
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "core/safetensors.h"

namespace switchyard {

// Whether the file begins like a ZIP archive.
bool IsTorchFile(const std::filesystem::path& path);

// The tensors of the saved dictionary by key; other values are ignored. Tensors that are not
// contiguous (views with other strides) are added to `scattered`. Reads only the archive's
// directory and the pickle, and runs no code of the pickle: it may contain dictionaries, lists,
// tuples, numbers, texts and tensors. Error kInvalid names the file. It is thrown for damaged or
// compressed archives, other objects, tensors larger than their storage, and big-endian files.
TensorEntries ReadTorchTensors(const std::filesystem::path& path, std::set<std::string>* scattered);

}  // namespace switchyard
