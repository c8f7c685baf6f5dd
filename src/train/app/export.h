// The finished model.
#pragma once

#include <filesystem>

namespace switchyard::train {

// Writes `output`/final from the run's last checkpoint and returns its path: weights in one
// model.safetensors, whatever number of ranks wrote them, config.json, generation_config.json,
// tokenizer and chat template; nothing of the optimizer. It is written aside and then gets the
// name, an older one going away. Throws Error: kNotFound where there is no checkpoint; what reading
// it throws; kResource where it cannot be written.
std::filesystem::path ExportFinal(const std::filesystem::path& output);

}  // namespace switchyard::train
