// Plots of training logs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/app/picture.h"

namespace switchyard::train {

// One metric of a log over its steps. Lines without the metric, or with a metric that is not a
// number, are skipped.
Curve CurveOf(const std::filesystem::path& log, const std::string& key, const std::string& label);

// Draws `output`/loss.svg from `output`/log.jsonl, and balance.svg if the model has experts. Throws
// Error: errors of ReadStepLog, kResource if a file cannot be written.
void WritePictures(const std::filesystem::path& output);

// Throws Error kResource if the file cannot be written.
void WritePicture(const std::filesystem::path& path, const std::string& svg);

}  // namespace switchyard::train
