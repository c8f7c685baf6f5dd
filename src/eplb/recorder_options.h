// What the recorder of experts is started with, and what it answers. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace switchyard {

// The flags; names and meaning follow SGLang's.
struct ExpertRecorderOptions {
  // --expert-distribution-recorder-mode; empty: nothing can be recorded.
  //   stat         logical_count of each pass, counted from the router's choice
  //   stat_approx  the same from the rows that came for each rank's experts; a runner that aligns
  //                its experts' rows adds those that fill up
  //   per_pass     and what each rank's own tokens chose
  //   per_token    and the choice of each token, with its position and request
  std::string mode;
  int64_t buffer_size = 1000;  // --expert-distribution-recorder-buffer-size: passes; −1: no limit
  std::filesystem::path dir = "/tmp";  // --expert-distribution-recorder-dir: where dumps go
  bool metrics = false;                // --enable-expert-distribution-metrics

  bool any() const { return metrics || !mode.empty(); }
};

// Error kInvalid naming the flag: an unknown mode, a buffer of no passes.
void Validate(const ExpertRecorderOptions& options);

// Mean over layers of mean / max rank load, of the last pass and of the passes before.
struct Balancedness {
  double current = 0, last_10 = 0, last_100 = 0, last_1000 = 0;  // 0 before the first pass
};

// What was counted since the server started, in passes that were recorded or, with metrics, in all.
struct ExpertLoad {
  int32_t layers = 0, experts = 0, ranks = 0;  // all layers of the model; EP ranks
  int64_t passes = 0;
  bool recording = false;
  Balancedness balancedness;           // with --enable-expert-distribution-metrics
  std::vector<int64_t> rank_count;     // [layers, ranks] rows of the rank's places
  std::vector<int64_t> logical_count;  // [layers, experts]; layers without experts have zeros
};

// What a dump has left.
struct ExpertDump {
  std::string file;  // empty where `error` is not
  std::string error;
  int64_t steps = 0;
  int32_t layers = 0, experts = 0;
  std::vector<int64_t> logical_count;  // [layers, experts], summed over steps
};

}  // namespace switchyard
