// Options and results of the expert distribution recorder. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace switchyard {

// The flags. Names and meaning follow SGLang's.
struct ExpertRecorderOptions {
  // --expert-distribution-recorder-mode; empty: recording is disabled.
  //   stat         logical_count of each pass, counted from the router's choices
  //   stat_approx  logical_count of each pass, counted from the rows that each rank's experts
  //                receive; includes padding rows if the runner aligns its experts' rows
  //   per_pass     as stat, and the counts of each rank's own tokens
  //   per_token    as stat, and the choice of each token, with its position and request
  std::string mode;
  int64_t buffer_size = 1000;  // --expert-distribution-recorder-buffer-size: passes; −1: no limit
  std::filesystem::path dir = "/tmp";  // --expert-distribution-recorder-dir: directory of dumps
  bool metrics = false;                // --enable-expert-distribution-metrics

  bool any() const { return metrics || !mode.empty(); }
};

// Error kInvalid names the flag: unknown mode, or a buffer size that is neither positive nor −1.
void Validate(const ExpertRecorderOptions& options);

// Mean over layers of (mean / max rank load). current: of the last pass. last_N: averaged over the
// last N passes.
struct Balancedness {
  double current = 0, last_10 = 0, last_100 = 0, last_1000 = 0;  // 0 before the first pass
};

// Counts since the server started. With metrics, all passes are counted; otherwise only recorded
// passes.
struct ExpertLoad {
  int32_t layers = 0, experts = 0, ranks = 0;  // layers: all layers of the model; ranks: EP ranks
  int64_t passes = 0;
  bool recording = false;
  Balancedness balancedness;           // set with --enable-expert-distribution-metrics
  std::vector<int64_t> rank_count;     // [layers, ranks] rows of the rank's slots
  std::vector<int64_t> logical_count;  // [layers, experts]; 0 in dense layers
};

// Result of a dump.
struct ExpertDump {
  std::string file;  // empty on error
  std::string error;
  int64_t steps = 0;
  int32_t layers = 0, experts = 0;
  std::vector<int64_t> logical_count;  // [layers, experts], summed over steps
};

}  // namespace switchyard
