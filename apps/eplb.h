// What `eplb plan` and `eplb simulate` share.
#pragma once

#include <cstdint>
#include <string>

#include "eplb/types.h"
#include "server/args/eplb_args.h"

namespace switchyard {

int RunEplbPlan(const EplbArgs& args);
int RunEplbSimulate(const EplbArgs& args);

// Before work whose result it would lose: error kResource names flag and file. Leaves nothing
// behind; an empty name is no file.
void CheckWritable(const char* flag, const std::string& file);
// Error kResource names the file.
void WriteFile(const std::string& file, const std::string& text);

RankTopology TopologyOf(const EplbArgs& args);
// The size of so many experts.
double GiB(const EplbArgs& args, int64_t experts);

// Whether no step has a token in the layer: it has no experts, or nothing was recorded.
bool IsEmpty(const LoadHistory& loads, int layer);
// The other layers: empty ones are even, and say nothing. Error kInvalid names the file of `args`
// where all are empty.
LoadHistory WithoutEmptyLayers(const LoadHistory& loads, const EplbArgs& args);

}  // namespace switchyard
