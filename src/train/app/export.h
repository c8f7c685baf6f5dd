// Exports the finished model.
#pragma once

#include <filesystem>

namespace switchyard::train {

// Writes `output`/final from the run's last checkpoint and returns its path. It holds one
// model.safetensors, however many ranks wrote the checkpoint, and config.json,
// generation_config.json, tokenizer and chat template, but no optimizer state. It is written to a
// temporary folder and then renamed, which replaces an older one. Throws Error: kNotFound if there
// is no checkpoint; errors of reading it; kResource if it cannot be written.
std::filesystem::path ExportFinal(const std::filesystem::path& output);

}  // namespace switchyard::train
