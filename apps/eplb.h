// Shared by `eplb plan` and `eplb simulate`.
#pragma once

#include <cstdint>
#include <string>

#include "eplb/types.h"
#include "server/args/tool_args.h"

namespace switchyard {

int RunEplbPlan(const EplbArgs& args);
int RunEplbSimulate(const EplbArgs& args);

// Checks that `file` can be written, before the work starts. Throws Error kResource that names flag
// and file. Creates no file. An empty `file` is accepted.
void CheckWritable(const char* flag, const std::string& file);
// Writes `text` to `file`. On failure, throws Error kResource that names the file.
void WriteFile(const std::string& file, const std::string& text);

RankTopology TopologyOf(const EplbArgs& args);
// Expert slots of all ranks: --physical, else the sum of --slots, else the number of experts.
int PhysicalOf(const EplbArgs& args, const RankTopology& topology, int experts);
// The counts of the file. Errors: those of ReadLoads.
LoadHistory ReadRecording(const EplbArgs& args);
// Size of `experts` experts in GiB, from --expert-mib.
double GiB(const EplbArgs& args, int64_t experts);

// True if no step has a token in the layer: it has no experts, or its routing was not recorded.
bool IsEmpty(const LoadHistory& loads, int layer);
// Drops the layers without tokens: they are trivially balanced. Error kInvalid names the file of
// `args` if all are empty.
LoadHistory WithoutEmptyLayers(const LoadHistory& loads, const EplbArgs& args);

}  // namespace switchyard
