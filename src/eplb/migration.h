// Migrates experts of layers to new slots while forward passes run.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/courier.h"
#include "moe/placement/movable_experts.h"

namespace switchyard {

struct MigrationOptions {
  int layers_per_chunk = 1;                    // layers that switch at the same step; −1: all
  int64_t bytes_per_step = int64_t{32} << 20;  // limit of bytes that a rank starts to load per step
  // Timeout: the migration is aborted if no rank makes progress for this time. A pass may take
  // long, so at least Migration::kMinStalledSteps passes must also have run without progress.
  std::chrono::duration<double> patience{60};
  RankTopology topology;  // the ranks that exchange experts
};

struct LayerMove {
  int layer = 0;
  ExpertPlacement placement;
};

// One rank's part of one migration. Its own thread prepares the layers of a chunk one after the
// other. When the chunk is in memory on every rank, all ranks switch its layers before the same
// pass, and the next chunk starts. So old and new weights of a chunk are in memory at the same
// time, a layer has the same placement on all ranks, and no pass waits for a file. If a rank cannot
// load an expert, or no rank makes progress for `patience`, all ranks abort. Layers that have
// switched keep the new placement, and the others keep the old one. Nothing is persisted, so the
// death of a rank leaves no partial state.
//
// Follows EPLB in SGLang, which also moves chunks of layers, but stops the engine for each chunk.
class Migration {
 public:
  static constexpr int kMinStalledSteps = 10;

  // `moves` must be equal on every rank and not empty; the other arguments are borrowed. `courier`
  // transfers the experts that other ranks hold. If it is null, all experts that this rank does not
  // hold are loaded from the checkpoint.
  Migration(std::vector<LayerMove> moves, const MigrationOptions& options, MovableExperts& experts,
            Communicator& world, ExpertCourier* courier = nullptr);
  // Stops the thread, which may first have to finish loading an expert. Logs a warning if that
  // takes long.
  ~Migration();

  // Called between two passes, before the same pass on every rank. Collective: one small
  // all-gather. Returns false when nothing is left to do and no rank's thread is running. It must
  // not be called again after that.
  bool Step();

  int layers_moved() const { return static_cast<int>(moved_); }
  int experts_loaded() const { return loaded_; }      // by this rank, in layers that have switched
  int experts_received() const { return received_; }  // by this rank, in layers that have switched
  // Longest stall of a pass by a layer switch on this rank, in seconds.
  double longest_switch_seconds() const { return longest_switch_; }
  // The first layer that has not switched; −1 if all layers have switched.
  int layer() const { return moved_ < moves_.size() ? moves_[moved_].layer : -1; }
  // Reason of an abort, empty if there was none. Ranks other than the one that failed have only the
  // start of the reason.
  const std::string& error() const { return error_; }
  bool timed_out() const { return timed_out_; }  // aborted by the watchdog

 private:
  enum class State : uint8_t { kLoading, kReady, kFailed, kEnded };
  struct RankStatus {  // status that ranks exchange before each pass
    State state = State::kLoading;
    bool timed_out = false;       // whether rank 0's watchdog has expired
    int64_t loaded = 0;           // number of expert loads started and pieces received so far
    int64_t batches = 0;          // ExpertCourier::batches_done
    std::array<char, 100> why{};  // if kFailed: start of the reason, null-terminated
  };

  void Run();
  void FreeUnused();
  void PrepareChunk(size_t begin, size_t end);
  void Throttle(int64_t bytes);
  void Decide(const std::vector<RankStatus>& all);
  void BeginChunk();
  void StepTransfers(const std::vector<RankStatus>& all);
  bool Overdue(const std::vector<RankStatus>& all);
  void AbortMigration(std::string why);
  void SwitchChunk();
  size_t ChunkEnd(size_t begin) const;

  const std::vector<LayerMove> moves_;
  const MigrationOptions options_;
  MovableExperts& experts_;
  Communicator& world_;
  ExpertCourier* const courier_;
  size_t moved_ = 0;           // number of moves that have switched; used by the rank's thread
  bool transferring_ = false;  // whether experts of the chunk are being received from other ranks
  int loaded_ = 0, received_ = 0;
  double longest_switch_ = 0;  // seconds
  std::string error_;
  bool timed_out_ = false, overdue_ = false;
  // Rank 0: sum of RankStatus::loaded over all ranks, plus layers moved.
  int64_t last_progress_ = -1;
  int steps_without_progress_ = 0;
  std::chrono::steady_clock::time_point progress_at_;

  std::mutex mutex_;  // guards the following members
  std::condition_variable state_changed_;
  State state_ = State::kLoading;
  bool stop_ = false;
  int64_t budget_ = 0;   // bytes; may become negative if one expert is larger
  int64_t started_ = 0;  // number of expert loads started
  // Whether all experts of the chunk that the courier transfers have arrived.
  bool all_arrived_ = false;
  std::map<int, MovableExperts::Arrived> arrived_;
  std::vector<PreparedLayer> prepared_;
  std::vector<OwnedExpert> retired_;  // the loading thread frees them
  std::string failure_;

  std::thread thread_;  // last member: it uses all of the above
};

}  // namespace switchyard
