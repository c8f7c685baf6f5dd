// The features that work on each kind of rank. CheckOptions refuses configurations by this list,
// and `switchyard backends --markdown` prints it, so that the two cannot differ.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/checks/checks.h"
#include "engine/config.h"

namespace switchyard {

// Where a feature works.
struct Reach {
  bool gpus = true;  // ranks on GPUs
  // Ranks on several hosts. false: ranks on CPUs must also map one arena (RankPlaces).
  bool hosts = true;
  bool one_gpu = true;    // works on one GPU; false: it needs several ranks, and so several GPUs
  bool cpus = true;       // works on CPUs; false only for a program's own backend
  bool gpu_hosts = true;  // works on GPUs of several hosts, if `gpus` and `hosts` are true
};

// One value of a flag, one switch, or a property of a checkpoint.
struct Feature {
  std::string section;  // heading in the table
  std::string flag;     // "--kv-cache-dtype", or words if there is no flag
  std::string value;    // value of the flag; empty: a switch
  Reach reach;
  // Text of the table's cells if the feature works under a condition only; empty: "yes".
  std::string on_cpus, on_gpus;
  // The requested value of a flag with a number, for errors; null for other features.
  std::function<std::string(const EngineConfig&)> number = nullptr;
  // Whether a configuration requests the feature. Null for features that work everywhere, which
  // need no check.
  std::function<bool(const EngineConfig&, const ModelConfig&)> requested;
  // Changes a configuration so that it requests the feature. Null if the checkpoint requests the
  // feature.
  std::function<void(EngineConfig&)> request;
};

// The features of an engine, in the table's order. `backends`: null for the built-in ones.
std::vector<Feature> EngineFeatures(const MoeBackends* backends = nullptr);

// Throws Error kInvalid if a requested feature does not work at `places`. The error names the first
// such feature and the values of its flag that work. With an empty `model`, only flags that concern
// all models are checked.
void CheckFeatures(const EngineConfig& config, const ModelConfig& model, RankPlaces places);

// A Markdown table of features by places. Values of one flag with equal cells share a row.
std::string FeatureTable(const std::vector<Feature>& features);

}  // namespace switchyard
