// Pictures of training logs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/app/picture.h"

namespace switchyard::train {

// A figure of a log over its steps; lines without it, or in which it is no number, are left out.
Curve CurveOf(const std::filesystem::path& log, const std::string& key, const std::string& label);

// Draws `output`/loss.svg and, where the model has experts, balance.svg from its log.jsonl. Throws
// Error: ReadStepLog's, kResource where one cannot be written.
void WritePictures(const std::filesystem::path& output);

// Throws Error kResource where it cannot be written.
void WritePicture(const std::filesystem::path& path, const std::string& svg);

}  // namespace switchyard::train
