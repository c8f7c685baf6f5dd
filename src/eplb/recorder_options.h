// Options and results of the expert distribution recorder, and the balancedness of rank loads.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

// Options and results of the expert distribution recorder. Plain values.

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
  // [TP ranks, 3] nanoseconds of each rank in dispatch, experts and combine, summed over layers and
  // `timed_passes` passes (MoeTimes). Empty before the first of these passes.
  std::vector<int64_t> stage_times;
  int64_t timed_passes = 0;  // all passes on CPUs, a sample of them on GPUs
};

// Result of a dump.
struct ExpertDump {
  std::string file;  // empty on error
  std::string error;
  int64_t steps = 0;
  int32_t layers = 0, experts = 0;
  std::vector<int64_t> logical_count;  // [layers, experts], summed over steps
};

// Balancedness of rank loads, pass by pass.

// rank_count [layers, ranks] → mean over layers of (mean / max over ranks); 1 if all ranks have
// equal load. Skips layers without rows; returns 1 if all are skipped.
double BalancednessOf(std::span<const int64_t> rank_count, int ranks);

// The balancedness of a pass, summed over the layers of several pipeline stages. A value without
// pointers, so that stages send its bytes.
struct BalancednessSum {
  int64_t pass = 0;    // index of the pass
  double sum = 0;      // of the layers with rows
  int64_t layers = 0;  // with rows
  int64_t rows = 0;    // of all experts

  // Adds layers, rank_count [layers, ranks]. The value of all layers, added in their order, has the
  // bits of BalancednessOf.
  void Add(std::span<const int64_t> rank_count, int ranks);
  double Mean() const { return layers == 0 ? 1.0 : sum / static_cast<double>(layers); }
};

// Moving averages over the last 10, 100 and 1000 passes. A value type.
class BalancednessWindows {
 public:
  void Add(double balancedness);
  Balancedness Get() const;

 private:
  static constexpr std::array<int64_t, 3> kSizes = {10, 100, 1000};

  std::vector<double> ring_ = std::vector<double>(kSizes.back());
  std::array<double, kSizes.size()> sums_{};
  int64_t passes_ = 0;
};

// The log line in SGLang's format, so that existing parsers work.
std::string BalancednessLine(int64_t forward_pass_id, const Balancedness& balancedness,
                             int64_t physical_count_sum);

}  // namespace switchyard
