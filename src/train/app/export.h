// Exports the finished model.
#pragma once

#include <filesystem>

namespace switchyard::train {

// Writes `output`/final from the run's last checkpoint and returns its path. The directory has one
// model.safetensors, whatever the number of ranks that wrote the checkpoint. It also has
// config.json, generation_config.json, tokenizer and chat template, but no optimizer state. It is
// written under a temporary name and then renamed; an older export is replaced. Throws Error:
// kNotFound if there is no checkpoint; errors of reading the checkpoint; kResource if the folder
// cannot be written.
std::filesystem::path ExportFinal(const std::filesystem::path& output);

}  // namespace switchyard::train
