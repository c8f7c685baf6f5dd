// TensorBoard event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "train/run/trainer.h"

namespace switchyard::train {

// CRC-32C (Castagnoli), as TFRecord files use it.
uint32_t Crc32c(std::string_view bytes);

// One record of a TFRecord file: length, masked CRC of the length, data, masked CRC of the data.
std::string TfRecord(std::string_view data);

// Writes the numbers of each step as scalars: the fields of log.jsonl, each a tag. The file is
// DIR/events.out.tfevents.TIME.HOST.PID, a TFRecord file of tensorflow.Event messages. Each run and
// each resumption writes a file of its own. Its second record tells TensorBoard to drop the later
// steps of earlier files. Used by one thread.
class EventLog {
 public:
  // `last_step`: the step that the run resumes from; 0: none. If the file cannot be written, `warn`
  // is called once and the run continues without it.
  EventLog(const std::filesystem::path& dir, int64_t last_step,
           std::function<void(const std::string&)> warn);

  void Write(const StepReport& report);
  const std::filesystem::path& path() const { return path_; }

 private:
  void Append(std::string_view event);

  std::filesystem::path path_;
  std::function<void(const std::string&)> warn_;
  bool warned_ = false;
  std::ofstream out_;
};

}  // namespace switchyard::train
