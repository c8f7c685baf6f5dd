// Experts of layers on their way to new places, while passes run.
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
#include "moe/movable_experts.h"

namespace switchyard {

struct MigrationOptions {
  int layers_per_chunk = 1;                    // that switch at the same step; −1: all
  int64_t bytes_per_step = int64_t{32} << 20;  // most that a rank begins to load in one step
  // Without progress anywhere, and through as many passes as Migration::kPatientSteps, before it is
  // given up: a pass may take long.
  std::chrono::duration<double> patience{60};
  RankTopology topology;  // where ranks send one another experts
};

struct LayerMove {
  int layer = 0;
  ExpertPlacement placement;
};

// One rank's part of one migration. Its own thread prepares the layers of a chunk one after the
// other; when those of a chunk are in memory on every rank, all ranks switch them before the same
// pass, and the next chunk begins. So weights arrive beside the ones in use, a layer is on all
// ranks the old or the new one, and no pass waits for a file. Where a rank cannot load an expert,
// or none makes progress for long, all give up what has not been switched: layers are old or new as
// before. Nothing is written anywhere, so a rank that dies leaves nothing half-done behind.
//
// After EPLB in SGLang, which moves chunks of layers too, but stops the engine for each.
class Migration {
 public:
  static constexpr int kPatientSteps = 10;

  // `moves` equal on every rank, not empty; borrows the others. `courier`: brings the experts that
  // other ranks hold; null: all are loaded.
  Migration(std::vector<LayerMove> moves, const MigrationOptions& options, MovableExperts& experts,
            Communicator& world, ExpertCourier* courier = nullptr);
  // Stops the thread, which may have to end the expert that it loads; says so where that takes
  // long.
  ~Migration();

  // Between two passes, before the same one on every rank: collective, one small all-gather. False
  // when nothing is left to do and no rank's thread is at work any more; it is not called again
  // then.
  bool Step();

  int layers_moved() const { return static_cast<int>(moved_); }
  int experts_loaded() const { return loaded_; }      // by this rank, into layers that moved
  int experts_received() const { return received_; }  // likewise
  // The longest that a pass has waited for layers to switch, on this rank.
  double longest_switch_seconds() const { return longest_switch_; }
  // The first layer that has not switched; −1: all have.
  int layer() const { return moved_ < moves_.size() ? moves_[moved_].layer : -1; }
  // Why it gave up; on other ranks than the one that failed, the beginning of that. Empty: it did
  // not.
  const std::string& error() const { return error_; }
  bool timed_out() const { return timed_out_; }  // it gave up since nothing moved

 private:
  enum class State : uint8_t { kLoading, kReady, kFailed, kEnded };
  struct Line {  // what ranks tell one another before each pass
    State state = State::kLoading;
    bool timed_out = false;       // rank 0's watchdog
    int64_t loaded = 0;           // experts and pieces so far
    int64_t batches = 0;          // ExpertCourier::batches_done
    std::array<char, 100> why{};  // kFailed: the beginning of the reason, ends with a 0
  };

  void Run();
  void LetGo();
  void PrepareChunk(size_t begin, size_t end);
  void Pace(int64_t bytes);
  void Decide(const std::vector<Line>& all);
  void BeginChunk();
  void Carry(const std::vector<Line>& all);
  bool Overdue(const std::vector<Line>& all);
  void GiveUp(std::string why);
  void SwitchChunk();
  size_t ChunkEnd(size_t begin) const;

  const std::vector<LayerMove> moves_;
  const MigrationOptions options_;
  MovableExperts& experts_;
  Communicator& world_;
  ExpertCourier* const courier_;
  size_t moved_ = 0;       // the rank's thread
  bool carrying_ = false;  // experts of the chunk are on their way from other ranks
  int loaded_ = 0, received_ = 0;
  double longest_switch_ = 0;  // seconds
  std::string error_;
  bool timed_out_ = false, overdue_ = false;
  int64_t last_progress_ = -1;  // rank 0: experts loaded and layers moved, of all ranks
  int steps_without_progress_ = 0;
  std::chrono::steady_clock::time_point progress_at_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable news_;
  State state_ = State::kLoading;
  bool stop_ = false;
  int64_t budget_ = 0;     // bytes; may be negative after an expert that is larger
  int64_t started_ = 0;    // experts that have begun to load
  bool all_here_ = false;  // what the courier brings of the chunk
  std::map<int, MovableExperts::Arrived> arrived_;
  std::vector<PreparedLayer> prepared_;
  std::vector<OwnedExpert> retired_;  // for the thread to let go of
  std::string failure_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace switchyard
