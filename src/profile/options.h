// Options and results of a profile. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::profile {

// One profile. Fields and meaning follow SGLang's POST /start_profile.
struct Options {
  std::string dir;   // directory of the files on each rank's host; created if missing
  std::string name;  // the files are NAME-TP-RANK.trace.json
  // Steps are forward passes, counted from the start of the server. Recording starts with this
  // step, or with the next step if this one has already run.
  int64_t start_step = 0;
  // Number of recorded steps after which the profile ends; 0: only Stop ends it.
  int64_t num_steps = 0;
  bool host = true;       // activity CPU: times on the rank's thread
  bool device = true;     // activity GPU: times on the stream of a rank on a GPU
  bool by_stage = false;  // prefill and decode steps have separate files; num_steps applies to each
  bool record_shapes = false;  // whether events have the shape of the operation's input
};

// Value of environment variable SWITCHYARD_TORCH_PROFILER_DIR; if unset, of SGLang's
// SGLANG_TORCH_PROFILER_DIR; if both are unset, /tmp.
std::string DefaultDirectory();
// Returns the default of Options::name: the current time in seconds since 1970.
std::string NameOfNow();

// The result of a profile on one rank, or on all ranks.
struct Result {
  // Written files, in order of ranks. A stage without steps has no file.
  std::vector<std::string> files;
  std::string error;  // why a file is missing; empty if all files are written
  int64_t events = 0, dropped = 0;
};

}  // namespace switchyard::profile
